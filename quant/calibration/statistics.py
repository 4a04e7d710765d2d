"""What is kept of the inputs of a linear layer: second moments, ranges and some rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.ops import dynamic_quant
from glm5_ascend.quant.methods.hessian import Factor, accumulate, factorise, symmetric
from glm5_ascend.quant.methods.static_range import InputHistogram

# Rows that enter one product; longer inputs are cut, so that copies stay small.
_ROWS = 8192


class Moments:
    """Second moments Σ w xᵀx, F32 [width, width], of an input as the engine sees it: after its
    per-token quantisation to int8.

    The sum depends on the order of ``add`` alone, not on threads.
    """

    def __init__(self, width: int) -> None:
        self._sum = torch.zeros(width, width)

    def add(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Add rows ``x`` [n, width], each ``weights`` [n] times."""
        for start in range(0, x.shape[0], _ROWS):
            codes, scale = dynamic_quant(x[start : start + _ROWS])
            part = None if weights is None else weights[start : start + _ROWS]
            accumulate(self._sum, codes.float() * scale, part)

    def factor(self, damp: float) -> Factor | None:
        """What sequential rounding needs; None if nothing can be learned from the sum."""
        return factorise(symmetric(self._sum), damp=damp)


class Sample:
    """Some rows of a long input, spread over it evenly: every ``step``-th."""

    def __init__(self, rows: int, most: int) -> None:
        self._step = max(1, -(-rows // most))
        self._seen = 0
        self._parts: list[Tensor] = []

    def add(self, x: Tensor) -> None:
        first = -self._seen % self._step
        self._parts.append(x[first :: self._step].float().clone())
        self._seen += x.shape[0]

    def rows(self) -> Tensor:
        """F32 [at most ``most``, width]."""
        return torch.cat(self._parts)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a linear's rounding needs to know of its input."""

    moments: bool = False
    ranges: bool = False
    sample: bool = False

    @property
    def anything(self) -> bool:
        return self.moments or self.ranges or self.sample


class InputStatistics:
    """The statistics that are wanted of one input of width ``width`` over ``rows`` rows."""

    def __init__(self, wanted: Wanted, width: int, rows: int, sample: int) -> None:
        self.moments = Moments(width) if wanted.moments else None
        self.ranges = InputHistogram() if wanted.ranges else None
        self.sample = Sample(rows, sample) if wanted.sample else None

        self._factors: dict[float, Factor | None] = {}

    def add(self, x: Tensor) -> None:
        for part in (self.moments, self.ranges, self.sample):
            if part is not None:
                part.add(x)

    def rows(self) -> Tensor:
        """The sampled rows, F32 [at most the number wanted, width]."""
        if self.sample is None:
            raise ValueError("no rows were kept")
        return self.sample.rows()

    def factor(self, damp: float) -> Factor | None:
        """The factor of the moments, computed once for all modules that read the input."""
        if self.moments is None:
            return None
        if damp not in self._factors:
            self._factors[damp] = self.moments.factor(damp)
        return self._factors[damp]
