"""Finds serve commands in what a user has: scripts, docker, compose, CI YAML, Kubernetes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.check.container import read_container
from glm5_ascend.deploy.check.context import Launch
from glm5_ascend.deploy.check.finding import Place
from glm5_ascend.deploy.check.shell import ScriptError, Simple, Word, commands
from glm5_ascend.errors import Glm5Error

_SHELLS = ("bash", "sh", "zsh", "dash")
_PROXIES = ("load_balance_proxy", "proxy_server_example")


@dataclass(frozen=True)
class Site:
    """One serve command and where it was found.

    Attributes:
        group: commands of one group belong to one deployment.
        words: the command's words with their places in the text; empty where they have none.
        origin: places of the assignments of its variables.
        npus: NPUs of a server, where the file says so; 0 otherwise.
        servers: servers of the deployment, where the file says so; 0 otherwise.
    """

    command: ServeCommand
    place: Place
    launch: Launch = field(default_factory=Launch)
    group: str = ""
    words: tuple[Word, ...] = ()
    origin: dict[str, tuple[int, int]] = field(default_factory=dict)
    npus: int = 0
    servers: int = 0


def read_sites(name: str, text: str, switches: Collection[str]) -> list[Site]:
    """Every ``vllm serve`` in a text.

    Args:
        name: of the file, for places; the suffix tells YAML.
        switches: flags without value.

    Raises:
        Glm5Error: the text has no serve command, is a script that a shell does not read, or
            YAML that cannot be read.
    """
    found: list[Site] = []
    if Path(name).suffix in (".yml", ".yaml") or _looks_like_yaml(text):
        from glm5_ascend.deploy.check.sites_yaml import yaml_sites

        found = list(yaml_sites(name, text, switches))
    else:
        found = list(_plain_script(name, text, switches))
    if not found:
        raise Glm5Error(
            f"{name} has no vllm serve command",
            "give a command line, a shell script, docker run, a compose file, a vllm-ascend CI"
            " YAML or a Kubernetes manifest",
        )
    return found


def _plain_script(name: str, text: str, switches: Collection[str]) -> Iterator[Site]:
    """Serve commands of a script that a shell reads as its author sees it."""
    if "\r\n" in text:
        raise Glm5Error(
            f"{name} has Windows line ends, and a shell takes each for a part of the last word",
            "convert it first: sed -i 's/\\r$//' FILE",
        )
    if text.startswith("\ufeff"):
        raise Glm5Error(
            f"{name} begins with a byte order mark, and a shell takes it for a part of a word",
            "remove it first: sed -i '1s/^\\xEF\\xBB\\xBF//' FILE",
        )
    try:
        yield from script_sites(name, text, switches)
    except ScriptError as error:
        raise ScriptError(f"{name}: {error.message}", error.hint) from error


def _looks_like_yaml(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    keys = ("apiVersion:", "services:", "test_name:", "test_cases:", "kind:", "version:", "---")
    return bool(lines) and lines[0].startswith(keys)


def script_sites(
    name: str, text: str, switches: Collection[str], first_line: int = 1
) -> Iterator[Site]:
    """Serve commands of a shell script; those of proxies in it are noted with each."""
    simple = list(commands(text))
    proxy = next((_proxy_words(one) for one in simple if _proxy_words(one)), ())
    for one in simple:
        for words, env, launch in _unwrapped(one):
            start = serve_index(words)
            if start is None:
                continue
            launch = replace(launch, proxy=proxy, breaks=one.breaks)
            line = one.line + first_line - 1
            exact = words == [word.value for word in one.words]
            yield Site(
                ServeCommand.parse(words[start:], env, switches),
                Place(name, line),
                launch,
                group=name,
                words=one.words[start:] if exact else (),
                origin=dict(one.origin) if exact else {},
            )


def serve_index(words: Sequence[str]) -> int | None:
    """Where ``vllm serve`` begins in the words."""
    for index, word in enumerate(words[:-1]):
        if os.path.basename(word) == "vllm" and words[index + 1] == "serve":
            return index
    return None


def _unwrapped(one: Simple) -> Iterator[tuple[list[str], dict[str, str], Launch]]:
    """The words themselves, or what ``bash -c`` or ``docker run`` would start."""
    words, env, launch = [word.value for word in one.words], dict(one.env), Launch()
    found = read_container(words)
    if found is not None:
        launch, env, words = found
    program = os.path.basename(words[0]) if words else ""
    if program in _SHELLS:
        scripts = [w for w in words[1:] if "vllm" in w and any(c.isspace() for c in w)]
        for inner in (simple for script in scripts for simple in commands(script)):
            yield [word.value for word in inner.words], env | inner.env, launch
        return
    yield words, env, launch


def _proxy_words(one: Simple) -> tuple[str, ...]:
    words = tuple(word.value for word in one.words)
    is_proxy = any(name in word for word in words for name in _PROXIES)
    return words if is_proxy else ()


def process_site(pid: int, switches: Collection[str]) -> Site:
    """The command of a running server, from ``/proc``.

    Raises:
        Glm5Error: no such process, or not a ``vllm serve``.
    """
    folder = Path("/proc") / str(pid)
    try:
        words = (folder / "cmdline").read_bytes().decode().split("\0")[:-1]
        entries = (folder / "environ").read_bytes().decode().split("\0")
    except (OSError, UnicodeDecodeError) as error:
        raise Glm5Error(
            f"cannot read process {pid}: {error}", "give the server's own id"
        ) from error
    start = serve_index(words)
    if start is None:
        raise Glm5Error(
            f"process {pid} is no vllm serve: {shlex.join(words[:3])}", "give the server's own id"
        )
    env = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    wanted = ("VLLM_", "HCCL_", "ASCEND_", "GLOO_", "TP_SOCKET", "PYTORCH_NPU", "PYTHONHASHSEED")
    kept = {k: v for k, v in env.items() if k.startswith((*wanted, "DYNAMIC_", "EXPERT_MAP_"))}
    command = ServeCommand.parse(words[start:], kept, switches)
    return Site(command, Place(f"process {pid}", 1), group="process")
