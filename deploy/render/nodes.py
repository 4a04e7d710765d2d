"""The serve command of every node of a plan, and the proxy in front of prefill and decode.

An instance over several servers uses vLLM's internal data parallelism: its first server has the
API, the others are headless. Prefill and decode meet through MooncakeConnectorV1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from glm5_ascend.deploy.catalogue import hardware
from glm5_ascend.deploy.catalogue.releases import Release, release
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.check.near import nearest
from glm5_ascend.deploy.plan_file import Plan, PlanError, RolePlan, Value
from glm5_ascend.deploy.render.place import (
    BEHIND_PROXY,
    Place,
    engine_port,
    is_networked,
    is_split,
    refuse_variable,
)
from glm5_ascend.errors import brief

RPC_PORT = 12_980
READY_S = 3600
_ABORT_S = 3600
_CONNECTOR = "MooncakeConnectorV1"
# The transport takes random ports from 20000, 1000 per die of a server.
_TRANSPORT_FIRST, _TRANSPORT_EACH = 20_000, 1000
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_OUR_VARIABLES = ("HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_NUMBER = re.compile(r"-\d+(\.\d+)?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FLAG_NAME = re.compile(r"[a-z][a-z0-9-]*")
_OURS = (
    *("host", "port", "headless", "served-model-name", "model", "additional-config"),
    *("kv-transfer-config", "data-parallel-address", "data-parallel-rpc-port"),
    *("data-parallel-size-local", "data-parallel-start-rank", "data-parallel-rank"),
)


@dataclass(frozen=True, slots=True)
class Node:
    """What one server runs.

    Attributes:
        number: of the server in the plan.
        role: ``mixed``, ``prefill`` or ``decode``.
        instance: number of its instance, counted over all roles.
        is_head: it has the instance's API.
        ranks: its data-parallel ranks.
        command: with the variables that it needs.
        slot: number of its rank on the server, where every rank is a server of its own.
    """

    number: int
    role: str
    instance: int
    is_head: bool
    ranks: int
    command: ServeCommand
    slot: int | None = None


def nodes(plan: Plan, place: Place) -> list[Node]:
    """The commands of all servers, by number; several of a server where every rank has one.

    Raises:
        PlanError: a layout that cannot be spread over servers, flags that contradict it, or a
            release that does not know what is needed.
    """
    found = release(plan.release)
    _check_ports(plan, place)
    made = []
    for instance, role in enumerate(plan.roles):
        spread = _spread(plan, role)
        start = 0
        for position, (number, ranks) in enumerate(zip(role.nodes, spread, strict=True)):
            flags = _flags(plan, place, role, found, position, start, ranks)
            if is_split(plan):
                flags["kv-transfer-config"] = _transfer(plan, instance, found)
            if role.additional_config:
                flags["additional-config"] = dict(role.additional_config)
            env = _env(plan, place, role, number, found)
            slots = range(ranks) if place.external_dp and role.group.dp > 1 else [None]
            for slot in slots:
                command = ServeCommand.build(place.checkpoint, flags, env)
                if slot is not None:
                    command = _one_rank(place, role, command, start + slot, slot)
                is_head = position == 0 or slot is not None
                made.append(Node(number, role.role, instance, is_head, ranks, command, slot))
            start += ranks
    return sorted(made, key=lambda node: (node.number, node.slot or 0))


def _one_rank(
    place: Place, role: RolePlan, command: ServeCommand, rank: int, slot: int
) -> ServeCommand:
    """The server of one rank: its dies, port and engine of its own, and the group of all ranks."""
    tp = role.group.tp
    spread = ("--headless", "--data-parallel-size-local", "--data-parallel-start-rank")
    transfer = command.json("--kv-transfer-config")
    transfer["engine_id"] = f"{transfer['engine_id']}-{rank}"
    dies = ",".join(str(die) for die in range(slot * tp, slot * tp + tp))
    return (
        command.without(*spread)
        .with_env("ASCEND_RT_VISIBLE_DEVICES", dies)
        .with_flag("--host", "0.0.0.0")
        .with_flag("--port", place.port + BEHIND_PROXY + slot)
        .with_flag("--data-parallel-rank", rank)
        .with_flag("--data-parallel-address", place.hosts[role.nodes[0]])
        .with_flag("--data-parallel-rpc-port", RPC_PORT)
        .with_flag("--kv-transfer-config", transfer)
    )


def _check_ports(plan: Plan, place: Place) -> None:
    """Refuse a public port that would meet those between the servers."""
    taken = range(RPC_PORT, RPC_PORT + 1) if is_networked(plan) else range(0)
    transfer = range(_TRANSPORT_FIRST, _kv_port(plan, len(plan.roles))) if is_split(plan) else taken
    engine = engine_port(plan, place)
    dies = hardware(f"{plan.sku}:{plan.servers}").sku.dies_per_server
    for port in {place.port, *range(engine, engine + (dies if place.external_dp else 1))}:
        if port in taken or port in transfer:
            last = transfer[-1] if port in transfer else RPC_PORT
            raise PlanError(
                f"port {port} is one of those between the servers",
                f"give a --port below {min(taken[0], transfer[0]) - 100} or above {last}",
            )


def _kv_port(plan: Plan, instance: int) -> int:
    """First port of an instance: one per rank, behind the transport's and those of the others."""
    dies = hardware(f"{plan.sku}:{plan.servers}").sku.dies_per_server
    before = sum(-(-role.group.dies // 100) * 100 for role in plan.roles[:instance])
    return _TRANSPORT_FIRST + dies * _TRANSPORT_EACH + before


def _spread(plan: Plan, role: RolePlan) -> list[int]:
    """Data-parallel ranks of each server of an instance, filled in their order."""
    group = role.group
    dies = hardware(f"{plan.sku}:{plan.servers}").sku.dies_per_server
    if group.pp > 1 or group.tp > dies:
        raise PlanError(
            f"{role.layout} puts one rank on several servers, which is not rendered",
            f"use a layout with TP up to {dies} and without PP",
        )
    each = dies // group.tp
    spread = [max(0, min(each, group.dp - each * position)) for position in range(len(role.nodes))]
    if sum(spread) != group.dp:
        raise PlanError(
            f"{role.layout} does not fit on {len(role.nodes)} servers of {dies} dies",
            "use a TP that divides the dies of a server",
        )
    return spread


def _flags(
    plan: Plan,
    place: Place,
    role: RolePlan,
    found: Release,
    position: int,
    start: int,
    ranks: int,
) -> dict[str, object]:
    group = role.group
    sizes: dict[str, Value] = {
        "tensor-parallel-size": group.tp,
        "data-parallel-size": group.dp,
        "decode-context-parallel-size": group.dcp,
    }
    for name, value in role.flags.items():
        if name in _OURS or not _FLAG_NAME.fullmatch(name):
            raise PlanError(
                f"flag {name!r} of {role.role} cannot be in a plan",
                f"these are set when the plan is rendered: {', '.join(_OURS)}",
            )
        if f"--{name}" not in found.flags:
            near = nearest(f"--{name}", found.flags)
            raise PlanError(
                f"flag {name!r} of {role.role} is none of vllm-ascend {found.text}",
                f"did you mean {near.removeprefix('--')}?" if near else "leave it out",
            )
        _check_value(f"flag {name} of {role.role}", value)
        if sizes.get(name, value) != value:
            raise PlanError(
                f"flag {name} of {role.role} is {value}, its layout is {role.layout}",
                "make them agree",
            )
    flags: dict[str, object] = {"host": "0.0.0.0", "port": engine_port(plan, place)}
    if position:
        flags = {"headless": True}
    flags["served-model-name"] = place.name
    needed = {name: size for name, size in sizes.items() if size != 1}
    flags |= {**needed, **role.flags}
    if len(role.nodes) > 1:
        flags |= {"data-parallel-size-local": ranks}
        flags |= {"data-parallel-start-rank": start} if position else {}
        address = place.hosts[role.nodes[0]]
        flags |= {"data-parallel-address": address, "data-parallel-rpc-port": RPC_PORT}
    # Of 0.30 `glm45` and `glm47` are one reasoning parser; 0.23 has the first name only.
    parsers = {"tool-call-parser": "glm47", "reasoning-parser": "glm45"}
    return flags | {"seed": 1024, "enable-auto-tool-choice": True} | parsers | dict(role.flags)


def _check_value(what: str, value: Value) -> None:
    """Refuse what would be something else on the command line."""
    items = value if isinstance(value, list) else [value]
    if None in items or not items:
        raise PlanError(f"{what} has no value", "true stands for a flag without value")
    if any(isinstance(item, list | dict) for item in items) and isinstance(value, list):
        raise PlanError(f"{what} has lists or mappings in a list", "give words")
    for item in items:
        if isinstance(item, str):
            refuse_variable(what, item)
            if item.startswith("-") and not _NUMBER.fullmatch(item):
                raise PlanError(f"{what} is {brief(item)}", "vLLM would take it for a flag")


def _env(
    plan: Plan, place: Place, role: RolePlan, number: int, found: Release
) -> Mapping[str, str]:
    for name, value in role.env.items():
        if not _ENV_NAME.fullmatch(name) or name in _OUR_VARIABLES:
            raise PlanError(
                f"{brief(name)} is no environment variable of a plan",
                f"these are set when the plan is rendered: {', '.join(_OUR_VARIABLES)}",
            )
        refuse_variable(name, value)
    env = {"VLLM_ENGINE_READY_TIMEOUT_S": str(READY_S)}
    if is_split(plan) or len(role.nodes) > 1:
        env["HCCL_IF_IP"] = place.hosts[number]
        env |= dict.fromkeys(_OUR_VARIABLES[1:], place.nic)
    abort = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
    if is_split(plan) and abort in found.variables:
        env[abort] = str(_ABORT_S)
    return env | dict(role.env)


def _transfer(plan: Plan, instance: int, found: Release) -> dict[str, object]:
    if _CONNECTOR not in found.connectors:
        raise PlanError(
            f"vllm-ascend {found.text} has no {_CONNECTOR}", "plan for a release that has it"
        )
    sizes: dict[str, dict[str, int]] = {}
    for role in plan.roles:
        own = {"dp_size": role.group.dp, "tp_size": role.group.tp}
        if sizes.setdefault(role.role, own) != own:
            raise PlanError(
                f"{role.role} has instances of different layouts",
                "the connector knows one layout per side: make them equal",
            )
    port = _kv_port(plan, instance)
    if port + plan.roles[instance].group.dies > 60_000:
        raise PlanError("too many instances for the ports of the cache transfer", "plan for fewer")
    return {
        "kv_connector": _CONNECTOR,
        "kv_role": _KV_ROLES[plan.roles[instance].role],
        "kv_port": str(port),
        "engine_id": str(instance),
        "kv_connector_extra_config": {"use_ascend_direct": True, **sizes},
    }


def proxy_words(plan: Plan, place: Place, hosts: Mapping[int, str] | None = None) -> list[str]:
    """Words of the proxy; empty where prefill and decode are together.

    Args:
        hosts: name of each instance's first server, where it is not its address.
    """
    if not is_split(plan):
        return []
    words = ["python3", place.proxy_script, "--host", "0.0.0.0", "--port", str(place.port)]
    for role, side in (("prefill", "prefiller"), ("decode", "decoder")):
        found = [pair for kind, *pair in api_servers(plan, place, hosts) if kind == role]
        words += [f"--{side}-hosts", *(str(host) for host, _ in found)]
        words += [f"--{side}-ports", *(str(port) for _, port in found)]
    return words


def api_servers(
    plan: Plan, place: Place, hosts: Mapping[int, str] | None = None
) -> list[tuple[str, str, int]]:
    """Role, host and port of every server with an API, in the order of the plan's roles.

    Args:
        hosts: name of each instance's first server, where it is not its address.
    """
    port = engine_port(plan, place)
    found = []
    for instance, role in enumerate(plan.roles):
        head = hosts[instance] if hosts else place.hosts[role.nodes[0]]
        if place.external_dp and role.group.dp > 1:
            for number, ranks in zip(role.nodes, _spread(plan, role), strict=True):
                host = place.hosts[number]
                found += [(role.role, host, port + slot) for slot in range(ranks)]
        else:
            found.append((role.role, head, port))
    return found
