"""Experts of the conformance suite, for the tests of the mixture of experts."""

from __future__ import annotations

from glm5_ascend.ops.verify.experts import (
    EXPERTS,
    HIDDEN,
    INTER,
    TOP_K,
    Experts,
    gate,
    pack,
    quantise,
)

__all__ = ["EXPERTS", "HIDDEN", "INTER", "TOP_K", "Experts", "gate", "pack", "quantise"]
