"""Serve commands in YAML: vllm-ascend's CI files, compose files and Kubernetes manifests."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.check.context import Launch
from glm5_ascend.deploy.check.finding import Place
from glm5_ascend.deploy.check.shell import Word, commands
from glm5_ascend.deploy.check.sites import Site, script_sites, serve_index
from glm5_ascend.errors import Glm5Error
from glm5_ascend.yaml_file import PlainLoader

_LINE = "__line__"
_MOST_PARTS = 100_000
_VARIABLE = re.compile(r"\$\{?([A-Z_]+)\}?")
_DEVICE = re.compile(r"/dev/davinci(\d+)")


class _Loader(PlainLoader):
    """Plain loading that keeps the line of each mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        mapping[_LINE] = node.start_mark.line + 1
        return mapping


def yaml_sites(name: str, text: str, switches: Collection[str]) -> Iterator[Site]:
    """Every serve command of a YAML file of one of the known kinds.

    Raises:
        Glm5Error: the text is no YAML, or its aliases make it endless.
    """
    try:
        loaded = list(yaml.load_all(text, _Loader))
    except (yaml.YAMLError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", None) or "no YAML"
        raise Glm5Error(f"{name} cannot be read{line}: {problem}", "correct the YAML") from error
    if _parts(loaded) > _MOST_PARTS:
        raise Glm5Error(
            f"{name} has more than {_MOST_PARTS:,} parts once its aliases are followed",
            "write it without aliases in aliases",
        )
    for document in loaded:
        if not isinstance(document, dict):
            continue
        if "services" in document:
            yield from _compose(name, text, document, switches)
        elif "kind" in document:
            yield from _kubernetes(name, text, document, switches)
        else:
            yield from _ci(name, text, document, switches)


def _parts(value: object) -> int:
    """Items of a value at every depth, shared ones each time; stops above ``_MOST_PARTS``."""
    count, open_ = 0, [value]
    while open_ and count <= _MOST_PARTS:
        one = open_.pop()
        count += 1
        if isinstance(one, list):
            open_ += one
        elif isinstance(one, dict):
            open_ += one.values()
    return count


def _ci(
    name: str, text: str, document: Mapping[str, Any], switches: Collection[str]
) -> Iterator[Site]:
    model = str(document.get("model", ""))
    npus, servers = _whole(document.get("npu_per_node")), _whole(document.get("num_nodes"))
    common = _env(document.get("env_common"))
    proxy = tuple(filter(None, [common.get("DISAGGREGATED_PREFILL_PROXY_SCRIPT")]))
    for item in _mappings(document.get("deployment")):
        for site in _site(name, text, item, item.get("server_cmd"), common, model, switches):
            yield replace(
                site,
                launch=replace(site.launch, proxy=proxy),
                group=name,
                npus=npus,
                servers=servers,
            )
    nodes = {str(item.get("node_index")): item for item in _mappings(document.get("config"))}
    for item in _mappings(document.get("templates")):
        node = nodes.get(str(item.get("node_index")), {})
        template = item.get("server_cmd_template")
        for site in _site(name, text, item, template, common, model, switches, _node(node)):
            launch = Launch(proxy=proxy, copies=_whole(node.get("dp_size_local")) or 1)
            yield replace(site, group=name, words=(), launch=launch, npus=npus, servers=servers)
    for index, item in enumerate(_mappings(document.get("test_cases"))):
        words = [*_words(item.get("server_cmd")), *_words(item.get("server_cmd_extra"))]
        own = str(item.get("model", model))
        for site in _site(name, text, item, words, common, own, switches):
            yield replace(site, group=f"{name} case {index}")


def _node(node: Mapping[str, Any]) -> dict[str, str]:
    names = {
        "DP_SIZE": "dp_size",
        "DP_RANK": "dp_rank_start",
        "DP_ADDRESS": "dp_address",
        "DP_RPC_PORT": "dp_rpc_port",
        "TP_SIZE": "tp_size",
        "PORT": "port_start",
    }
    return {name: str(node[key]) for name, key in names.items() if key in node}


def _site(
    name: str,
    text: str,
    item: Mapping[str, Any],
    command: object,
    common: Mapping[str, str],
    model: str,
    switches: Collection[str],
    values: Mapping[str, str] | None = None,
) -> Iterator[Site]:
    env = {**common, **_env(item.get("envs"))}
    known = {k: v for k, v in env.items() if "$" not in v} | dict(values or {})
    line = _whole(item.get(_LINE))
    if isinstance(command, str):
        for simple in commands(_one_line(command)):
            words = [_resolve(word.value, known) for word in simple.words]
            start = serve_index(words)
            if start is None:
                continue
            parsed = ServeCommand.parse(words[start:], {**env, **simple.env}, switches)
            placed = _locate(text, line, simple.words[start:])
            shown = text.count("\n", 0, placed[0].start) + 1 if placed else line
            yield Site(parsed, Place(name, shown), words=placed)
        return
    words = [_resolve(word, known) for word in _words(command)]
    if words:
        head = [] if serve_index(words) is not None else ["vllm", "serve", model]
        yield Site(ServeCommand.parse([*head, *words], env, switches), Place(name, line))


def _resolve(word: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda m: values.get(m[1], m[0]), word)


def _locate(text: str, line: int, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """The words of a block of text at their places in the file; empty where one is not found."""
    position = 0
    for _ in range(max(line - 1, 0)):
        position = text.find("\n", position) + 1
    placed = []
    for word in words:
        pattern = r"\s+".join(re.escape(part) for part in word.raw.split())
        match = re.compile(pattern).search(text, position)
        if match is None:
            return ()
        placed.append(Word(word.value, match[0], match.start(), match.end()))
        position = match.end()
    return tuple(placed)


def _compose(
    name: str, text: str, document: Mapping[str, Any], switches: Collection[str]
) -> Iterator[Site]:
    for service in _mappings(list(_plain(document["services"]).values())):
        devices = [_DEVICE.match(str(d)) for d in _list(service.get("devices"))]
        listed = tuple(int(match[1]) for match in devices if match)
        launch = Launch(
            image=str(service.get("image", "")),
            host_network=service.get("network_mode") == "host",
            devices=listed if listed and not service.get("privileged") else None,
            mounts=tuple(_mount(item) for item in _list(service.get("volumes"))),
        )
        words = [*_words(service.get("entrypoint")), *_words(service.get("command"))]
        env = _env(service.get("environment"))
        line = _whole(service.get(_LINE))
        yield from _words_site(name, words, env, launch, line, switches)


def _kubernetes(
    name: str, text: str, document: Mapping[str, Any], switches: Collection[str]
) -> Iterator[Site]:
    for spec in _pod_specs(document):
        volumes = {
            str(v.get("name")): str(_plain(v.get("hostPath")).get("path", ""))
            for v in _mappings(spec.get("volumes"))
        }
        for item in _mappings(spec.get("containers")):
            mounts = [str(m.get("name")) for m in _mappings(item.get("volumeMounts"))]
            launch = Launch(
                image=str(item.get("image", "")),
                host_network=bool(spec.get("hostNetwork")),
                devices=_chips(item),
                mounts=tuple(volumes.get(mount, "") for mount in mounts),
            )
            env = {
                str(entry["name"]): _text(entry.get("value", f"$({entry['name']})"))
                for entry in _mappings(item.get("env"))
                if "name" in entry
            }
            words = [*_words(item.get("command")), *_words(item.get("args"))]
            line = _whole(item.get(_LINE))
            yield from _words_site(name, words, env, launch, line, switches)


def _words_site(
    name: str,
    words: list[str],
    env: dict[str, str],
    launch: Launch,
    line: int,
    switches: Collection[str],
) -> Iterator[Site]:
    scripts = [w for w in words if "vllm serve" in w and any(c.isspace() for c in w)]
    is_shell = bool(words) and os.path.basename(words[0]) in ("bash", "sh")
    if is_shell and scripts:
        for site in script_sites(name, "\n".join(scripts), switches):
            command = replace(site.command, env={**env, **site.command.env})
            launched = replace(launch, breaks=site.launch.breaks, proxy=site.launch.proxy)
            yield replace(site, command=command, place=Place(name, line), launch=launched, words=())
        return
    start = serve_index(words)
    if start is not None:
        command = ServeCommand.parse(words[start:], env, switches)
        yield Site(command, Place(name, line), launch, group=name)


def _pod_specs(value: object) -> Iterator[Mapping[str, Any]]:
    """Every mapping that has containers, at any depth: pods, templates, custom resources."""
    if isinstance(value, Mapping):
        if isinstance(value.get("containers"), list):
            yield value
        for inner in value.values():
            yield from _pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _pod_specs(inner)


def _chips(container: Mapping[str, Any]) -> tuple[int, ...] | None:
    limits = _plain(_plain(container.get("resources")).get("limits"))
    for name, count in limits.items():
        if re.search(r"ascend|npu", str(name), re.IGNORECASE) and str(count).isdigit():
            return tuple(range(int(count)))
    return None


def _mount(item: object) -> str:
    return str(item.get("source", "")) if isinstance(item, Mapping) else str(item).split(":")[0]


def _env(value: object) -> dict[str, str]:
    if isinstance(value, list):
        return dict(str(item).split("=", 1) for item in value if "=" in str(item))
    return {str(k): _text(v) for k, v in _plain(value).items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return [w.value for simple in commands(_one_line(value)) for w in simple.words]
    return [_text(item) for item in value] if isinstance(value, list) else []


def _one_line(text: str) -> str:
    """A command over several lines of YAML: it is split at blanks, not by a shell."""
    return re.sub(r"\\?[ \t]*\n", " ", text)


def _plain(value: object) -> dict[Any, Any]:
    return {k: v for k, v in value.items() if k != _LINE} if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [v for v in _list(value) if isinstance(v, Mapping)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
