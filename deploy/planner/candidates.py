"""Every layout that the hardware allows: DP x TP x EP, prefill and decode, drafts, C8, DCP, DSA-CP.

Each candidate is one role's settings; prefill and decode are paired later, since their times do not
depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.memory import Settings, bill
from glm5_ascend.deploy.memory.bill import Bill
from glm5_ascend.deploy.memory.cache import blocks_of
from glm5_ascend.deploy.memory.overhead import least_buffsize
from glm5_ascend.deploy.memory.text import verdict
from glm5_ascend.deploy.planner.targets import Targets

_TP = (1, 2, 4, 8, 16)
_MIXED_BATCH, _PREFILL_BATCHES = 4096, (8192, 16384)
_UTILISATION = 0.92
# Servers up to which every split between prefill and decode is tried.
_EVERY_SHARE = 8
_DEFAULT_BUFFSIZE, _MOST_FUSED_TOKENS = 200, 512
# Sequences per rank that decode steps are tried with.
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Choices:
    """What is open: formats of the cache and numbers of drafts to try."""

    caches: Sequence[str]
    drafts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One role's settings with its bill.

    Attributes:
        servers: of all instances.
        capacity: requests that a rank's cache holds at once, shared blocks counted once.
        reason: why it cannot serve, or None.
    """

    settings: Settings
    servers: int
    bill: Bill
    capacity: int
    reason: str | None


def candidates(targets: Targets, choices: Choices) -> list[Candidate]:
    """Every role on every number of servers, those that do not fit included."""
    found = []
    total = targets.hardware.servers
    split = _shares(targets)
    shares = {"mixed": [total], "prefill": split, "decode": [total - one for one in split]}
    for role, tried in shares.items():
        for servers in tried:
            for group in _groups(targets, role, servers):
                found += [
                    _candidate(targets, settings, servers)
                    for settings in _settings(targets, choices, role, group)
                ]
    return found


def _shares(targets: Targets) -> list[int]:
    """Numbers of servers that prefill; of many only those that leave a decode group whose ranks
    divide the experts, which no other can serve."""
    total, dies = targets.hardware.servers, targets.hardware.sku.dies_per_server
    every = range(1, total)
    if total <= _EVERY_SHARE:
        return list(every)
    return [one for one in every if targets.model.experts % ((total - one) * dies) == 0]


def _groups(targets: Targets, role: str, servers: int) -> Iterator[Group]:
    per_server = targets.hardware.sku.dies_per_server
    copies = [n for n in range(1, servers + 1) if servers % n == 0]
    for count in [1] if role == "decode" else copies:
        dies = servers // count * per_server
        for tp in _TP:
            if tp > per_server or dies % tp:
                continue
            for dcp in {1, tp} if role != "prefill" else {1}:
                yield Group(dies // tp, tp, dcp=dcp, copies=count)


def _settings(targets: Targets, choices: Choices, role: str, group: Group) -> Iterator[Settings]:
    contexts = (False, True) if group.tp > 1 and role != "decode" else (False,)
    batches = _PREFILL_BATCHES if role == "prefill" else (_MIXED_BATCH,)
    drafts = choices.drafts if role != "prefill" else (1 if max(choices.drafts) else 0,)
    for kv in choices.caches:
        for dsa_cp in contexts:
            for batch in batches:
                for count in drafts:
                    yield Settings(
                        model=targets.model,
                        sku=targets.hardware.sku,
                        group=group,
                        quant=targets.quant,
                        kv=kv,
                        role=role,
                        max_model_len=targets.length,
                        max_num_seqs=32,
                        max_num_batched_tokens=32 * (1 + count) if role == "decode" else batch,
                        utilisation=_UTILISATION,
                        draft_tokens=count,
                        dsa_cp=dsa_cp,
                        graph=role != "prefill",
                        buffsize=buffsize(targets, group, 32 * (1 + count)),
                        release=targets.release,
                    )


def buffsize(targets: Targets, group: Group, rows: int) -> int:
    """HCCL_BUFFSIZE in MiB for steps of ``rows`` tokens per DP rank."""
    tokens = min(rows, _MOST_FUSED_TOKENS * group.tp)
    least = least_buffsize(targets.model, group, tokens)
    return max(_DEFAULT_BUFFSIZE, -(-least // 8) * 8)


def _candidate(targets: Targets, settings: Settings, servers: int) -> Candidate:
    found = bill(settings)
    shared = round(targets.prompt * (targets.shared if settings.role != "prefill" else 0.0))
    own = targets.prompt - shared + (targets.output if settings.role != "prefill" else 0)
    free = found.blocks - blocks_of(settings, shared)
    capacity = max(free // max(blocks_of(settings, own), 1), 0)
    reason = None
    if not found.fits:
        reason = verdict(found)
    elif capacity < 1:
        reason = "the cache holds no request beside the shared prefix"
    return Candidate(settings, servers, found, capacity, reason)
