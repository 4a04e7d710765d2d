"""The tolerance policy of the package as assertions."""

from __future__ import annotations

import torch

from glm5_ascend.ops.verify import compare
from glm5_ascend.ops.verify.compare import COSINE_LIMIT, difference, error_limit

__all__ = [
    "COSINE_LIMIT",
    "assert_close",
    "assert_identical",
    "assert_same_selection",
    "difference",
    "error_limit",
]


def assert_close(
    actual: torch.Tensor, oracle: torch.Tensor, low: torch.Tensor, *, name: str = "result"
) -> None:
    """Fail unless ``compare.close`` passes."""
    compare.require(compare.close(actual, oracle, low, name=name))


def assert_same_selection(
    actual: torch.Tensor,
    scores: torch.Tensor,
    limit: float,
    *,
    ascending: bool = True,
    name: str = "selection",
) -> None:
    """Fail unless ``compare.selection`` passes."""
    order = "position" if ascending else "any"
    compare.require(compare.selection(actual, scores, limit, order=order, name=name))


def assert_identical(actual: torch.Tensor, expected: torch.Tensor, *, name: str = "result") -> None:
    """Fail unless ``compare.identical`` passes."""
    compare.require(compare.identical(actual, expected, name=name))
