"""What is kept of the inputs of a linear layer: second moments, ranges and some rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Columns of one block of the second moments; only blocks on and above the diagonal are computed.
_BLOCK = 1024
# Rows that enter one product; longer inputs are cut, so that copies stay small.
_ROWS = 8192


class Moments:
    """Σ w² xᵀx over rows x [width] with weights w, F32, the Hessian of a linear's squared error.

    The sum depends on the order of ``add`` alone, not on threads.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self._sum = torch.zeros(width, width)

    def add(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Add rows ``x`` [n, width] with weights [n]."""
        self.count += x.shape[0]
        for start in range(0, x.shape[0], _ROWS):
            part = x[start : start + _ROWS].float()
            if weight is not None:
                part = part * weight[start : start + _ROWS, None]
            _add_upper(self._sum, part)

    def matrix(self) -> Tensor:
        """The symmetric F32 [width, width]; the lower half is copied from the upper one."""
        for start in range(0, self._sum.shape[0], _BLOCK):
            part = slice(start, start + _BLOCK)
            self._sum[start + _BLOCK :, part] = self._sum[part, start + _BLOCK :].T
        return self._sum


def _add_upper(total: Tensor, x: Tensor) -> None:
    width = total.shape[0]
    for start in range(0, width, _BLOCK):
        columns = x[:, start : start + _BLOCK]
        total[start : start + _BLOCK, start:].addmm_(columns.T, x[:, start:])


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


@dataclass(slots=True)
class Ranges:
    """Extremes of an input: of all values, and per channel.

    Attributes:
        low, high: smallest and largest value, 0 included.
        largest: F32 [width], max |x| per channel.
        total: F64 [width], Σ |x| per channel.
        count: rows.
    """

    low: float
    high: float
    largest: Tensor
    total: Tensor
    count: int

    @classmethod
    def empty(cls, width: int) -> Ranges:
        return cls(0.0, 0.0, torch.zeros(width), torch.zeros(width, dtype=torch.float64), 0)

    def add(self, x: Tensor) -> None:
        """Add rows ``x`` [n, width]."""
        if not x.shape[0]:
            return
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        size = x.abs().float()
        self.largest = torch.maximum(self.largest, size.amax(0))
        self.total += size.sum(0, dtype=torch.float64)
        self.count += x.shape[0]

    @property
    def mean(self) -> Tensor:
        """F64 [width]: mean |x| per channel."""
        return self.total / max(1, self.count)


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
        self.ranges = Ranges.empty(width) if wanted.ranges else None
        self.sample = Sample(rows, sample) if wanted.sample else None

    def add(self, x: Tensor) -> None:
        for part in (self.moments, self.ranges, self.sample):
            if part is not None:
                part.add(x)
