"""The memory bill of one die, and what follows from it: context, sequences, margin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glm5_ascend.deploy.catalogue.hardware import GIB
from glm5_ascend.deploy.memory.cache import blocks_in, blocks_of, token_bytes
from glm5_ascend.deploy.memory.limits import cautions, refusals
from glm5_ascend.deploy.memory.overhead import outside_bytes, overhead_bytes
from glm5_ascend.deploy.memory.settings import Settings
from glm5_ascend.deploy.memory.weights import PARTS, weight_bytes

LABELS = PARTS | {
    "activation": "activations (peak)",
    "hccl": "HCCL buffers (in, out)",
    "runtime": "runtime, driver, other HCCL",
    "graphs": "captured graphs",
    "kv": "KV cache",
}


@dataclass(frozen=True, slots=True)
class Bill:
    """Bytes on one die, modelled; ``kv`` is what the budget leaves and may be negative.

    Attributes:
        parts: bytes by key of :data:`LABELS`, without ``kv``.
        budget: ``gpu_memory_utilization`` times the device's memory.
        kv: bytes left for the cache.
        blocks: cache blocks in them.
        refused: reasons that have nothing to do with memory.
        cautions: what runs, but worse than asked for.
    """

    settings: Settings
    parts: Mapping[str, float]
    budget: float
    kv: float
    blocks: int
    refused: tuple[str, ...]
    cautions: tuple[str, ...]

    @property
    def weights(self) -> float:
        """Bytes of all weights."""
        return sum(self.parts[name] for name in PARTS)

    @property
    def needed_kv(self) -> float:
        """Bytes of cache that one request of ``max_model_len`` takes."""
        settings = self.settings
        tokens = blocks_of(settings, settings.max_model_len) * settings.block
        return float(tokens * token_bytes(settings))

    @property
    def cache_margin(self) -> float:
        """Bytes of cache beyond the longest request's; below 0 it does not fit."""
        return self.kv - self.needed_kv

    @property
    def outside_margin(self) -> float:
        """Bytes outside of the budget beyond those needed there; below 0 it fails later."""
        needed, there = outside_bytes(self.settings)
        return there - needed

    @property
    def margin(self) -> float:
        """The smaller margin, bytes."""
        return min(self.cache_margin, self.outside_margin)

    @property
    def fits(self) -> bool:
        """Whether the engine starts and serves one request of ``max_model_len``."""
        return not self.refused and self.margin >= 0

    @property
    def max_context(self) -> int:
        """The longest request that the cache holds, at most the model's positions."""
        return min(self.blocks * self.settings.block, self.settings.model.positions)

    @property
    def max_sequences(self) -> int:
        """Requests of ``max_model_len`` that a DP rank's cache holds at once."""
        return self.blocks // blocks_of(self.settings, self.settings.max_model_len)

    def as_dict(self) -> dict[str, object]:
        """JSON form; GiB are 2^30 bytes."""
        settings = self.settings
        return {
            "role": settings.role,
            "layout": str(settings.group),
            "fits": self.fits,
            "margin_gib": round(self.margin / GIB, 3),
            "cache_margin_gib": round(self.cache_margin / GIB, 3),
            "outside_margin_gib": round(self.outside_margin / GIB, 3),
            "budget_gib": round(self.budget / GIB, 3),
            "parts_gib": {name: round(size / GIB, 3) for name, size in self.parts.items()},
            "weights_gib": round(self.weights / GIB, 3),
            "kv_gib": round(self.kv / GIB, 3),
            "kv_bytes_per_token": float(token_bytes(settings)),
            "kv_blocks": self.blocks,
            "max_model_len": settings.max_model_len,
            "max_context": self.max_context,
            "max_sequences_at_max_model_len": self.max_sequences,
            "hccl_buffsize_mib": settings.buffsize,
            "refused": list(self.refused),
            "cautions": list(self.cautions),
        }


def bill(settings: Settings, kv_bytes: int | None = None) -> Bill:
    """The bill of ``settings``.

    Args:
        kv_bytes: bytes of cache that a log reports, in place of the modelled ones.
    """
    parts = {**weight_bytes(settings), **overhead_bytes(settings)}
    budget = settings.utilisation * settings.sku.memory_bytes
    left = budget - sum(parts.values()) if kv_bytes is None else float(kv_bytes)
    return Bill(
        settings=settings,
        parts=parts,
        budget=budget,
        kv=left,
        blocks=blocks_in(settings, left),
        refused=tuple(refusals(settings)),
        cautions=tuple(cautions(settings)),
    )
