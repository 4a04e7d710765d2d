"""Asks machines for facts: one script, here or through ssh, all machines at once."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from glm5_ascend.deploy.addresses import is_ipv6
from glm5_ascend.errors import Glm5Error, brief
from glm5_ascend.files import read_text

LOCAL = "this machine"
_SECONDS = 180
_MOST_BYTES = 1 << 20
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")
_ZONE = re.compile(r"[^%]*(%[\w.-]+)?")
_USER, _HOST = re.compile(r"(?:[A-Za-z_][\w.-]*@)?"), re.compile(r"[A-Za-z0-9][\w.-]*")

Ask = Callable[[str, str], str]  # host and script to what it printed


@dataclass(frozen=True)
class Section:
    """Output of one question: its text, and its exit status."""

    text: str
    rc: int

    def by_device(self) -> dict[str, str]:
        """Text per device, where the question was put to each."""
        parts = re.split(r"^--- (\S+)\n", self.text, flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2], strict=True))


@dataclass(frozen=True)
class Machine:
    """What one machine said; ``error`` where it could not be asked."""

    host: str
    sections: Mapping[str, Section] = field(default_factory=dict)
    error: str = ""

    def text(self, name: str) -> str:
        """Text of a section that was answered without an error; empty otherwise."""
        found = self.sections.get(name)
        return found.text if found and found.rc == 0 else ""

    def devices(self, name: str) -> dict[str, str]:
        """Text of a section per device."""
        found = self.sections.get(name)
        return found.by_device() if found else {}

    @property
    def npus(self) -> list[int]:
        """Numbers of the NPU device nodes."""
        return [int(word) for word in self.text("devices").split() if word.isdigit()]


def parse_nodes(text: str) -> list[str]:
    """Hosts of ``u@h1,h2`` or of a file ``@hosts``, one a line.

    Raises:
        Glm5Error: no hosts, a word that is no host, or a file that is no short text.
        OSError: the file cannot be opened.
    """
    if text.startswith("@"):
        lines = read_text(Path(text[1:]), _MOST_BYTES, "write one user@host a line").splitlines()
        words = [line.partition("#")[0].strip() for line in lines]
    else:
        words = [word.strip() for word in text.split(",")]
    hosts = [word for word in words if word]
    hosts = [_host(word) for word in hosts]
    if not hosts:
        raise Glm5Error("there are no hosts in --nodes", "write user@host, several with commas")
    user = hosts[0].rpartition("@")[0]
    named = [h if "@" in h or not user or h == LOCAL else f"{user}@{h}" for h in hosts]
    return list(dict.fromkeys(named))


def _host(word: str) -> str:
    """A word as ssh takes it: an IPv6 address without brackets."""
    user, at, host = word.rpartition("@")
    if _USER.fullmatch(f"{user}{at}"):
        address = host.removeprefix("[").removesuffix("]")
        if is_ipv6(host) and _ZONE.fullmatch(address):
            return f"{user}{at}{address}"
        if _HOST.fullmatch(host):
            return word
    raise Glm5Error(f"{brief(word)} is no host", "write user@host, several with commas")


def ask_shell(host: str, script: str) -> str:
    """Run a script on a machine, here by ``sh``, elsewhere by ssh with keys only.

    Raises:
        OSError, subprocess.SubprocessError: it could not be run.
    """
    command = ["sh", "-s"] if host == LOCAL else [*_SSH, "--", host, "sh -s"]
    done = subprocess.run(
        command, input=script, capture_output=True, text=True, errors="replace", timeout=_SECONDS
    )
    if "=== " not in done.stdout:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        raise OSError(words[-1] if words else f"no answer, exit code {done.returncode}")
    return done.stdout


def survey(hosts: Sequence[str], model: str | None, ask: Ask = ask_shell) -> list[Machine]:
    """Facts about each host, in the order given."""
    text = (Path(__file__).parent / "probe.sh").read_text(encoding="utf-8")
    return run_all(
        hosts, {host: f"MODEL={shlex.quote(model or '')}\n{text}" for host in hosts}, ask
    )


def run_all(hosts: Sequence[str], scripts: Mapping[str, str], ask: Ask) -> list[Machine]:
    """Each host's answer to its script."""

    def one(host: str) -> Machine:
        try:
            return Machine(host, parse(ask(host, scripts[host])))
        except (OSError, subprocess.SubprocessError) as error:
            return Machine(host, error=str(error) or type(error).__name__)

    with ThreadPoolExecutor(max_workers=min(len(hosts), 64)) as pool:
        return list(pool.map(one, hosts))


def parse(output: str) -> dict[str, Section]:
    """Sections of what the script printed."""
    found: dict[str, Section] = {}
    pattern = re.compile(r"^=== (?!rc )(\S+)\n(.*?)^=== rc (\d+)$", re.MULTILINE | re.DOTALL)
    for match in pattern.finditer(output):
        found[match[1]] = Section(match[2], int(match[3]))
    return found
