"""The integer grids that weights are rounded to, with the rule for their scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.quant.scheme import Scheme

SMALLEST_SCALE = 2.0**-100


@dataclass(frozen=True, slots=True)
class Grid:
    """Codes ``low`` … ``high`` times one scale per row.

    Attributes:
        low, high: smallest and largest code.
        clips: candidates of the scale search as shares of the scale that clips nothing.
        snap: float32 scales to the nearest ones that the engine can hold.
    """

    low: int
    high: int
    clips: tuple[float, ...]
    snap: Callable[[Tensor], Tensor]

    def codes(self, values: Tensor, scale: Tensor) -> Tensor:
        """Nearest codes as floats; ``scale`` broadcasts against ``values``."""
        return torch.round(values / scale).clamp_(self.low, self.high)


def to_bfloat16(scale: Tensor) -> Tensor:
    """Round to values that bfloat16 holds exactly, kept in the dtype of ``scale``."""
    return scale.to(torch.bfloat16).to(scale.dtype)


def _exact(scale: Tensor) -> Tensor:
    return scale.clone()


def _steps(first: float, last: float, count: int) -> tuple[float, ...]:
    return tuple(first + (last - first) * i / (count - 1) for i in range(count))


INT4 = Grid(-8, 7, _steps(0.40, 1.04, 17), _exact)
# The engine keeps the scales of W8A8_DYNAMIC in bfloat16.
INT8 = Grid(-128, 127, _steps(0.60, 1.02, 15), to_bfloat16)


def grid_of(scheme: Scheme) -> Grid:
    """Return the grid of a stored scheme; static W8A8 has that of the dynamic one.

    Raises:
        ValueError: FLOAT, which is not rounded to integers.
    """
    if scheme is Scheme.FLOAT:
        raise ValueError(f"{scheme} has no integer grid")
    return INT4 if scheme is Scheme.W4A8_DYNAMIC else INT8
