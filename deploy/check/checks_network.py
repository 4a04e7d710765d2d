"""Ports, HCCL buffers and time limits."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

from glm5_ascend.deploy.check.checks_transfer import TRANSFER
from glm5_ascend.deploy.check.command_line import ServeCommand, whole_number
from glm5_ascend.deploy.check.context import Context, is_open, truth
from glm5_ascend.deploy.check.rule import Condition, Mend, check

MIB = 1 << 20
BUFFER = "HCCL_BUFFSIZE"
DEFAULT_BUFFER = 200
_READY = "VLLM_ENGINE_READY_TIMEOUT_S"
_READY_DEFAULT, _READY_WANTED = 600, 3600
_TRANSPORT_FIRST, _TRANSPORT_EACH = 20_000, 1000
_SAFE = {8: 28_000, 16: 36_000}
_LAST_PORT = 65_535
_HCCL_BASE = 60_000
_MC2_RANKS_A2, _MC2_EXPERTS_A2 = 16, 24


def buffer_mib(tokens: int, hidden: int, experts: int, per_token: int, shared: int) -> float:
    """Bytes, in MiB, that the full-mesh dispatch and combine operators need.

    Args:
        tokens: of a rank in a step, B.
        hidden: width of the model.
        experts: routed experts of all ranks, redundant ones included.
        per_token: routed experts of a token.
        shared: shared experts.

    Formula: 2 (B D experts + B C (per_token + shared)) with D = up512(up32(2 hidden) + 44) and
    C = up512(2 hidden); operator's tiling check of CANN, as its error message prints it.
    """
    dispatch = _up(_up(2 * hidden, 32) + 44, 512)
    combine = _up(2 * hidden, 512)
    return 2 * tokens * (dispatch * experts + combine * (per_token + shared)) / MIB


def hierarchical_mib(tokens: int, hidden: int, experts: int, per_token: int) -> float:
    """The same for the hierarchical algorithm of the A2: experts B (2 hidden + 4 (3 up8(k)) + 64)
    plus 404 MiB, which is the form that fits the 600 MiB that a log prints for B = 64."""
    each = 2 * hidden + 4 * 3 * _up(per_token, 8) + 64
    return experts * tokens * each / MIB + 404


def fused_mib(tokens: int, hidden: int, per_token: int) -> float:
    """The same for the fused operator: B k hidden 3 bytes plus 10 MiB."""
    return tokens * per_token * hidden * 3 / MIB + 10


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _uses_mc2(context: Context) -> bool:
    model = context.model
    # Nothing is known about what the operators of the A5 need.
    if model is None or not model.experts or context.ep <= 1 or context.chip == "A5":
        return False
    if context.chip == "A2" or (not context.chip and context.ep < _MC2_RANKS_A2):
        local = model.experts / context.ep
        return context.ep >= _MC2_RANKS_A2 and local <= _MC2_EXPERTS_A2
    return True


@check
def buffers(context: Context) -> Iterator[Condition]:
    env, model = context.command.env, context.model
    text = env.get(BUFFER, str(DEFAULT_BUFFER))
    given = whole_number(text)
    if given is None:
        if not is_open(text):
            yield Condition("hccl-number", BUFFER, text)
        return
    step = context.largest_step
    if model is None or step is None or context.has_open_sizes or not _uses_mc2(context):
        return
    tokens = math.ceil(step / context.tp)
    needed = buffer_mib(
        tokens, model.hidden, model.experts, model.experts_per_token, model.shared_experts
    )
    is_hierarchical = truth(env.get("HCCL_INTRA_PCIE_ENABLE")) and context.chip == "A2"
    if is_hierarchical and not truth(env.get("HCCL_INTRA_ROCE_ENABLE", "0")):
        needed = hierarchical_mib(tokens, model.hidden, model.experts, model.experts_per_token)
    fused = context.fused_mc2 in (1, 2, True) and context.chip != "A2"
    least = fused_mib(tokens, model.hidden, model.experts_per_token) if fused else needed
    if given >= needed:
        return
    wanted = _up(math.ceil(needed), 64)
    yield Condition(
        "hccl-buffer" if given < least else "hccl-buffer-unfused",
        BUFFER,
        f"{given} MiB for {tokens} tokens per rank, {needed:.0f} are needed",
        f"write {BUFFER}={wanted}",
        lambda command: command.with_env(BUFFER, str(wanted)),
    )


@check
def transport(context: Context) -> Iterator[Condition]:
    port = context.kv_port
    if port is None or not context.connector("Mooncake"):
        return
    last = port + context.port_count - 1
    if last > _LAST_PORT:
        yield Condition("kv-port-range", f"{TRANSFER}.kv_port", f"{port} to {last}")
    safe = _SAFE.get(context.dies, _SAFE[8])
    if port < _TRANSPORT_FIRST - context.port_count:
        return
    item = f"{TRANSFER}.kv_port"
    if port < safe:
        detail = f"{port}, ports from {_TRANSPORT_FIRST} to {safe} are taken"
        yield Condition("kv-port-transport", item, detail, f"write {safe} or more", _move(safe))
    elif not context.dies and port < _SAFE[16]:
        yield Condition("kv-port-maybe", item, f"{port}", mend=_move(_SAFE[16]))


def _move(safe: int) -> Mend:
    """Put every kv_port above ``safe``, with the distances that they had."""

    def moved(port: object) -> object:
        number = whole_number(str(port))
        if number is None or number >= safe or number < _TRANSPORT_FIRST - _TRANSPORT_EACH:
            return port
        new = safe + number % _TRANSPORT_EACH
        return str(new) if isinstance(port, str) else new

    def mend(command: ServeCommand) -> ServeCommand:
        config = copy.deepcopy(command.json(TRANSFER))
        extra = config.get("kv_connector_extra_config")
        several = extra.get("connectors", []) if isinstance(extra, dict) else []
        for part in (config, *(item for item in several if isinstance(item, dict))):
            if "kv_port" in part:
                part["kv_port"] = moved(part["kv_port"])
        return command.with_json(TRANSFER, config)

    return mend


def _ports(context: Context) -> Iterator[tuple[str, int, int]]:
    """Name, first and last port of what the command binds on its host."""
    command = context.command
    if not command.switch("--headless"):
        api = command.whole("--port", 8000)
        yield "--port", api, api
    for flag in ("--data-parallel-rpc-port", "--master-port"):
        if command.given(flag):
            port = command.whole(flag, 0)
            yield flag, port, port
    if context.kv_port is not None:
        yield "kv_port", context.kv_port, context.kv_port + context.port_count - 1
    base = whole_number(command.env.get("HCCL_IF_BASE_PORT", "")) or _HCCL_BASE
    yield "HCCL_IF_BASE_PORT", base, base + max(context.dies, 16) - 1


@check
def clashes(context: Context) -> Iterator[Condition]:
    ports = [entry for entry in _ports(context) if entry[1]]
    for index, (name, first, last) in enumerate(ports):
        for other, low, high in ports[index + 1 :]:
            if first <= high and low <= last:
                spans = " and ".join(
                    f"{n} {_span(a, b)}" for n, a, b in (ports[index], (other, low, high))
                )
                yield Condition("port-clash", name, spans)


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


@check
def peer_ports(context: Context) -> Iterator[Condition]:
    if context.kv_port is None or context.role != "kv_consumer":
        return
    last = context.kv_port + context.port_count - 1
    for peer in context.peers:
        if peer.kv_port is None or peer.role == context.role:
            continue
        end = peer.kv_port + peer.port_count - 1
        if peer.kv_port <= last and context.kv_port <= end:
            detail = f"{_span(peer.kv_port, end)} and {_span(context.kv_port, last)}"
            yield Condition("peers-kv-port", f"{TRANSFER}.kv_port", detail)
            return


@check
def ready(context: Context) -> Iterator[Condition]:
    if context.model is None or context.model.validation_only:
        return
    text = context.command.env.get(_READY, str(_READY_DEFAULT))
    seconds = whole_number(text)
    if seconds is not None and seconds <= _READY_DEFAULT:
        yield Condition(
            "ready-timeout",
            _READY,
            f"{seconds} s",
            f"write {_READY}={_READY_WANTED}",
            lambda command: command.with_env(_READY, str(_READY_WANTED)),
        )
