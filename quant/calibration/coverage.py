"""How many calibration tokens each expert saw, and a warning for those that saw too few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from glm5_ascend.console import note


@dataclass(frozen=True, slots=True)
class LayerCoverage:
    """Tokens routed to the experts of one layer.

    Attributes:
        counts: per expert.
        cold: experts with fewer tokens than the threshold, which are rounded from weights alone.
    """

    counts: tuple[int, ...]
    cold: int

    def as_dict(self) -> dict[str, object]:
        return {
            "tokens": sum(self.counts),
            "min": min(self.counts),
            "median": median(self.counts),
            "max": max(self.counts),
            "unused": sum(count == 0 for count in self.counts),
            "cold": self.cold,
        }


def covered(counts: Sequence[int], min_tokens: int) -> LayerCoverage:
    return LayerCoverage(tuple(counts), sum(count < min_tokens for count in counts))


def report(layers: Mapping[int, LayerCoverage], min_tokens: int) -> None:
    """Print a table of all MoE layers on stderr and, if experts stayed cold, a warning."""
    if not layers:
        return
    columns = ("tokens", "min", "median", "max", "unused", "cold")
    note("tokens per expert")
    note("layer" + "".join(f"{name:>11}" for name in columns))
    for layer, found in sorted(layers.items()):
        row = found.as_dict()
        note(f"{layer:>5}" + "".join(f"{row[name]:>11,}" for name in columns))
    cold = sum(found.cold for found in layers.values())
    if cold:
        total = sum(len(found.counts) for found in layers.values())
        note(
            f"warning: {cold} of {total} experts saw fewer than {min_tokens} calibration tokens"
            " and are rounded from their weights alone; more text, or text of other kinds, would"
            " reach them"
        )
