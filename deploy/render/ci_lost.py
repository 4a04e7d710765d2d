"""What a command of a CI file and the one that its plan renders do not have in common, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glm5_ascend.deploy.catalogue.releases import Release
from glm5_ascend.deploy.check.command_line import (
    Option,
    ServeCommand,
    dump,
    read_json,
    whole_number,
)
from glm5_ascend.deploy.plan_file import Plan, PlanError, Value
from glm5_ascend.deploy.render.nodes import nodes
from glm5_ascend.deploy.render.place import place_of
from glm5_ascend.errors import brief

# What the CI sets by itself, or what a site says anew.
SITE_VARIABLES = (
    *("HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
    *("SERVER_PORT", "LOCAL_IP", "MASTER_IP", "NIC_NAME", "ASCEND_RT_VISIBLE_DEVICES"),
    "DISAGGREGATED_PREFILL_PROXY_SCRIPT",
)
_SITE_FLAGS = (
    *("--host", "--port", "--served-model-name", "--model", "--trust-remote-code"),
    *("--data-parallel-address", "--data-parallel-rpc-port", "--master-addr", "--master-port"),
)
# How an instance is spread over servers, where each of them runs a server per rank.
_SPREAD = (
    *("--data-parallel-rank", "--data-parallel-start-rank", "--data-parallel-size-local"),
    "--headless",
)
_DEFAULTS: dict[str, Value] = {
    **{f"--{size}-parallel-size": 1 for size in ("tensor", "data", "pipeline", "decode-context")},
    "--data-parallel-start-rank": 0,
}


def values(command: ServeCommand, found: Release) -> dict[str, Value]:
    """The flags of a command by name with dashes, each as a plan writes it; of repeated ones the
    last counts.

    Raises:
        PlanError: JSON that cannot be read.
    """
    made: dict[str, Value] = {}
    for option in command.options:
        name = option.name
        positive = name.replace("--no-", "--", 1)
        kind = found.flags.get(name, "text")
        if name.startswith("--no-") and name not in found.flags:
            made[positive] = False
        elif kind == "json":
            _check_json(option)
            made[name] = command.json(name)
        elif not option.values:
            made[name] = True
        elif len(option.values) > 1 or kind == "list":
            made[name] = list(option.values)
        else:
            made[name] = _scalar(option.values[0], kind)
    return made


def _check_json(option: Option) -> None:
    if option.path:
        return
    try:
        whole = isinstance(read_json(option.values[0]), dict) if option.values else False
    except ValueError:
        whole = False
    if not whole:
        raise PlanError(
            f"{option.name} {brief(' '.join(option.values))} is no JSON object",
            "correct it in the file",
        )


def _scalar(text: str, kind: str) -> Value:
    number = whole_number(text) if kind == "whole" and text.isdigit() else None
    if number is not None:
        return number
    if kind == "number":
        try:
            return float(text)
        except ValueError:
            return text
    return text


def lost(plan: Plan, commands: Sequence[tuple[int, ServeCommand]], found: Release) -> list[str]:
    """What differs once the plan is rendered, one sentence a difference, nodes named together.

    Addresses, ports of servers and the model's path are a site's and do not count.
    """
    hosts = ",".join(f"10.0.{n // 250}.{n % 250 + 1}" for n in range(plan.servers))
    try:
        made = nodes(plan, place_of(plan, hosts=hosts, nic="eth0"))
    except PlanError as error:
        return [f"only --format plan can be written: {error.message}"]
    again = {node.number: node.command for node in made}
    where: dict[str, list[str]] = {}
    for number, command in commands:
        for text in _differences(command, again[number], found):
            where.setdefault(text, []).append(str(number))
    every = len(commands)
    return [
        text if len(numbers) == every else f"node {', '.join(numbers)}: {text}"
        for text, numbers in where.items()
    ]


def _differences(old: ServeCommand, new: ServeCommand, found: Release) -> Iterator[str]:
    for word in old.stray:
        yield f"{brief(word)}, which belongs to no flag, is dropped"
    before, after = values(old, found), values(new, found)
    skipped: tuple[str, ...] = _SITE_FLAGS
    if "--data-parallel-rank" in before:
        skipped += _SPREAD
        yield "a server per rank becomes one engine per instance, but for --external-dp"
    for name in dict.fromkeys([*before, *after]):
        if name in skipped:
            continue
        default = _DEFAULTS.get(name)
        one, two = before.get(name, default), after.get(name, default)
        if isinstance(one, dict) and isinstance(two, dict):
            yield from _inside(name, one, two)
        elif one != two:
            yield _sentence(name, one, two)
    for name in dict.fromkeys([*old.env, *new.env]):
        if name not in SITE_VARIABLES and old.env.get(name) != new.env.get(name):
            yield _sentence(name, old.env.get(name), new.env.get(name))


def _inside(name: str, old: dict[str, Value], new: dict[str, Value]) -> Iterator[str]:
    for key in dict.fromkeys([*old, *new]):
        one, two = old.get(key), new.get(key)
        if isinstance(one, dict) and isinstance(two, dict):
            yield from _inside(f"{name}.{key}", one, two)
        elif _shown(one) != _shown(two):
            yield _sentence(f"{name}.{key}", one, two)


def _sentence(name: str, old: Value, new: Value) -> str:
    if new is None:
        return f"{name} {_shown(old)} is dropped"
    if old is None:
        return f"{name} {_shown(new)} is added"
    return f"{name} was {_shown(old)} and becomes {_shown(new)}"


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else dump(value)
