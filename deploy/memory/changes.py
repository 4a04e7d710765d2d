"""The nearest changes that make settings fit: one flag, then a format, a layout, more machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from glm5_ascend.deploy.memory.bill import Bill, bill
from glm5_ascend.deploy.memory.settings import Settings

_HIGHEST_UTILISATION = 0.95
_BATCHES = (8192, 4096, 2048)
_CACHES = ("li-c8", "sfa-c8", "both")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the settings that fits.

    Attributes:
        text: what to change, as a flag where there is one.
        bill: the bill after it.
    """

    text: str
    bill: Bill


def nearest_changes(settings: Settings, dies: int, most: int = 4) -> list[Change]:
    """Changes that fit, the nearest first: at most one of a kind and ``most`` in all.

    Args:
        dies: of the whole hardware, for layouts of another shape.
    """
    found: list[Change] = []
    kinds: set[str] = set()
    for kind, text, changed in _candidates(settings, dies):
        if kind in kinds or len(found) == most:
            continue
        after = bill(changed)
        if after.fits:
            kinds.add(kind)
            found.append(Change(text, after))
    return found


def _candidates(settings: Settings, dies: int) -> Iterator[tuple[str, str, Settings]]:
    percent = round(100 * settings.utilisation)
    for higher in range(percent + 1, round(100 * _HIGHEST_UTILISATION) + 1):
        text = f"--gpu-memory-utilization {higher / 100}"
        yield "utilisation", text, replace(settings, utilisation=higher / 100)
    for lower in range(percent - 1, 49, -1):
        text = f"--gpu-memory-utilization {lower / 100}"
        yield "utilisation", text, replace(settings, utilisation=lower / 100)
    for tokens in _BATCHES:
        if tokens < settings.max_num_batched_tokens:
            changed = replace(settings, max_num_batched_tokens=tokens)
            yield "batch", f"--max-num-batched-tokens {tokens}", changed
    if settings.model.index_heads:
        for kv in _CACHES:
            if settings.kv == "bf16" or (kv == "both" and settings.kv != "both"):
                yield "cache", f"--kv {kv}", replace(settings, kv=kv)
    context = bill(settings).max_context
    if 0 < context < settings.max_model_len:
        changed = replace(settings, max_model_len=context)
        yield "length", f"--max-model-len {context}", changed
    if settings.dsa_cp:
        yield "dsa-cp", "without DSA-CP", replace(settings, dsa_cp=False)
    yield from _other_layouts(settings, dies)
    for quant in ("w8a8", "w4a8"):
        if settings.quant == "bf16" or (settings.quant == "w8a8" and quant == "w4a8"):
            yield "quant", f"--quant {quant}", replace(settings, quant=quant)
    for times in (2, 4, 8):
        group = replace(settings.group, dp=settings.group.dp * times)
        text = f"{times} times the servers, as {group}"
        yield "servers", text, replace(settings, group=group)


def _other_layouts(settings: Settings, dies: int) -> Iterator[tuple[str, str, Settings]]:
    """TP and DCP of other sizes on as many dies, those nearest to the present TP first."""
    group = settings.group
    whole = group.dies if settings.role != "mixed" else dies
    sizes = [tp for tp in (1, 2, 4, 8, 16) if whole % tp == 0]
    sizes.sort(key=lambda tp: (abs(tp.bit_length() - group.tp.bit_length()), tp))
    for tp in sizes:
        for dcp in (1, tp):
            other = replace(group, dp=whole // tp, tp=tp, dcp=dcp, pp=1, copies=1)
            if other != group:
                yield "layout", f"--layout {other}", replace(settings, group=other)
