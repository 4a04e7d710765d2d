"""Requests and NumPy formulas of the conformance suite, for the tests of single operators."""

from __future__ import annotations

from glm5_ascend.ops.verify.formula import attention, best_positions, index_scores, rotate
from glm5_ascend.ops.verify.requests import REQUESTS, Paged, Requests, page

__all__ = [
    "REQUESTS",
    "Paged",
    "Requests",
    "attention",
    "best_positions",
    "index_scores",
    "page",
    "rotate",
]
