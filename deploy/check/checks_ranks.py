"""Data-parallel ranks, servers and what they need of each other."""

from __future__ import annotations

from collections.abc import Iterator

from glm5_ascend.deploy.check.context import Context, is_open
from glm5_ascend.deploy.check.rule import Condition, check

_NIC = ("HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_ADDRESS = "--data-parallel-address"


@check
def ranks(context: Context) -> Iterator[Condition]:
    command = context.command
    start = command.whole("--data-parallel-start-rank", 0)
    rank = command.whole("--data-parallel-rank", 0)
    local = command.whole("--data-parallel-size-local", 0)
    if command.given("--data-parallel-rank") and context.dp == 1:
        if is_open(command.text("--data-parallel-size")):
            return
        yield Condition("dp-external", "--data-parallel-rank")
    elif rank >= context.dp and command.given("--data-parallel-rank"):
        yield Condition("dp-rank", "--data-parallel-rank", f"rank {rank} of {context.dp}")
    elif start + local > context.dp:
        detail = f"start rank {start}, {local or 'no'} local, {context.dp} in all"
        yield Condition("dp-rank", "--data-parallel-start-rank", detail)
    if 0 < local < context.dp and not command.given(_ADDRESS):
        yield Condition("dp-address", _ADDRESS, f"{local} of {context.dp} ranks here")


@check
def servers(context: Context) -> Iterator[Condition]:
    if not context.dies:
        return
    nodes = context.size("--nnodes")
    width = context.tp * context.pp * context.pcp
    needed = context.local_ranks * width
    if nodes > 1:
        needed = -(-needed // nodes)
    if context.tp > context.dies * (nodes if context.pp == 1 else 1) and nodes == 1:
        yield Condition("dies-server", "--tensor-parallel-size", _dies(context.tp, context))
    elif needed > context.dies:
        yield Condition("dies-server", "--data-parallel-size-local", _dies(needed, context))
    if context.tp > context.dies and nodes > 1:
        yield Condition("tp-server", "--tensor-parallel-size", _dies(context.tp, context))


def _dies(needed: int, context: Context) -> str:
    sku = context.hardware.sku.name if context.hardware else ""
    return f"{needed} here, {context.dies} in a server ({sku})"


@check
def interface(context: Context) -> Iterator[Condition]:
    missing = [name for name in _NIC if name not in context.command.env]
    if context.is_multi_node and missing:
        yield Condition("nic-variables", missing[0], f"no {', '.join(missing)}")


def _engine(context: Context) -> list[Context]:
    """The commands that start ranks of this one's engine, this one first."""
    return [
        context,
        *(
            peer
            for peer in context.peers
            if (peer.role, peer.dp, peer.tp) == (context.role, context.dp, context.tp)
        ),
    ]


def _start(context: Context) -> int:
    rank = context.command.whole("--data-parallel-rank", -1)
    return rank if rank >= 0 else context.command.whole("--data-parallel-start-rank", 0)


@check
def sums(context: Context) -> Iterator[Condition]:
    members = _engine(context)
    has_first = _start(context) == 0 and context.command.whole("--node-rank", 0) == 0
    if not has_first or len(members) == 1 or context.dp == 1:
        return
    spans = sorted((_start(member), member.local_ranks) for member in members)
    if len({start for start, _ in spans}) != len(spans):
        return  # a template that is started several times
    covered = 0
    for start, count in spans:
        if start != covered:
            break
        covered += count
    if covered != context.dp:
        is_part = covered == sum(count for _, count in spans) < context.dp
        alike = len({count for _, count in spans}) == 1
        rule = "peers-dp-rest" if is_part and alike else "peers-dp-sum"
        listed = ", ".join(f"{start} to {start + count - 1}" for start, count in spans)
        detail = f"ranks {listed} are started, {context.dp} are announced"
        yield Condition(rule, "--data-parallel-size", detail)
    for flag in (_ADDRESS, "--data-parallel-rpc-port"):
        values = {m.command.text(flag) for m in members if m.command.given(flag)}
        if len(values) > 1 and not any(map(is_open, values)):
            yield Condition("peers-dp-address", flag, " and ".join(sorted(values)))
