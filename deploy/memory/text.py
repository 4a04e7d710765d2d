"""A bill for people: a table, a bar, and what would fit."""

from __future__ import annotations

from collections.abc import Sequence

from glm5_ascend.deploy.catalogue.hardware import GIB
from glm5_ascend.deploy.memory.bill import LABELS, Bill
from glm5_ascend.deploy.memory.cache import token_bytes
from glm5_ascend.deploy.memory.changes import Change

_WIDTH = 60
# One letter per group of parts in the bar.
_MARKS = {
    "W": ("experts", "experts_remainder"),
    "A": ("attention", "dsa_cp", "mlapo", "indexer"),
    "w": ("shared_dense", "router", "embed_head", "mtp"),
    "a": ("activation",),
    "h": ("hccl", "runtime"),
    "g": ("graphs",),
}
_LEGEND = (
    "W experts, A attention, w other weights, a activations, h HCCL and runtime,"
    " g graphs, K cache, . outside"
)


def bill_text(found: Bill, changes: Sequence[Change] = ()) -> str:
    """Table, bar and verdict; every number is modelled."""
    settings, total = found.settings, found.settings.sku.memory_bytes
    lines = [
        f"{settings.role} {settings.group} (EP {settings.group.ep}), {settings.quant},"
        f" cache {settings.kv}, GiB per die, modelled",
    ]
    for name, size in found.parts.items():
        if size:
            lines.append(_line(LABELS[name], size, total))
    lines.append(_line(LABELS["kv"], found.kv, total))
    lines.append(
        _line(f"budget, {settings.utilisation:g} of {total / GIB:.2f}", found.budget, total)
    )
    lines += ["", f"  [{bar(found)}]", f"  {_LEGEND}", ""]
    per_token = float(token_bytes(settings))
    lines.append(
        f"  cache {per_token:,.0f} B per token: {found.blocks:,} blocks,"
        f" {found.blocks * settings.block:,} tokens per DP rank"
    )
    lines.append(
        f"  longest request {found.max_context:,} tokens;"
        f" {found.max_sequences} of {settings.max_model_len:,} tokens at once"
    )
    lines += [f"  caution: {text}" for text in found.cautions]
    lines.append(f"  {verdict(found)}")
    for number, change in enumerate(changes):
        words = "nearest change that fits" if number == 0 else "or"
        lines.append(f"  {words}: {change.text} (margin {change.bill.margin / GIB:.2f} GiB)")
    return "\n".join(lines)


def verdict(found: Bill) -> str:
    """One line: fits or not, by how much, and why."""
    if found.refused:
        return f"REFUSED: {'; '.join(found.refused)}"
    margin = f"{found.margin / GIB:+.2f} GiB"
    length = f"{found.settings.max_model_len:,} tokens"
    if found.fits:
        return f"FITS {length}, margin {margin}"
    if found.kv <= 0:
        return f"DOES NOT FIT: nothing is left for the cache ({found.kv / GIB:+.2f} GiB)"
    if found.cache_margin < 0:
        return f"DOES NOT FIT: the cache is too small for {length} ({margin})"
    return f"DOES NOT FIT: buffers that come later find no memory outside the budget ({margin})"


def bar(found: Bill, width: int = _WIDTH) -> str:
    """The die's memory as ``width`` letters; too much is cut off with ``!``."""
    total = found.settings.sku.memory_bytes
    drawn, done = "", 0.0
    for mark, names in _MARKS.items():
        done += sum(found.parts[name] for name in names)
        drawn += mark * (round(done / total * width) - len(drawn))
    done += max(found.kv, 0.0)
    drawn += "K" * (round(done / total * width) - len(drawn))
    return drawn.ljust(width, ".") if len(drawn) <= width else drawn[: width - 1] + "!"


def _line(label: str, size: float, total: float) -> str:
    return f"  {label:<30}{size / GIB:>8.2f} {100 * size / total:>6.1f} %"
