"""What is kept of the inputs of a linear layer: second moments, ranges and some rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.ops.matmul import int_matmul
from glm5_ascend.quant.methods.hessian import Factor, factorise, symmetric
from glm5_ascend.quant.methods.static_range import InputHistogram

# Rows of one product, whose sums stay below 2^31, and columns of one.
_ROWS = 4096
_COLUMNS = 1536
# Rows whose largest values lie within this factor share one scale.
_SPREAD = 2.0


class Moments:
    """Second moments Σ w xᵀx, F32 [width, width], of an input.

    Products are exact integers: rows are ordered by √w max|x| and rounded to int8 in groups with
    one scale, which costs a row at most one bit of the resolution that the engine's own rounding
    has, and is several times faster than F32. The sum depends on the order of ``add`` alone, not on
    threads.
    """

    def __init__(self, width: int) -> None:
        self.count, self._weight, self._squares = 0, 0.0, 0.0
        self._sum = torch.zeros(width, width)

    def add_average(self, other: Moments, rows: float) -> None:
        """Add ``rows`` times the average row of ``other``, at this sum's average weight."""
        if self.count and other.count:
            weight = self._weight / self.count
            self._sum.add_(other._sum, alpha=rows * weight / other.count)

    def add(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Add rows ``x`` [n, width], each with a weight of ``weights`` [n], not negative."""
        self.count += x.shape[0]
        given = torch.ones(x.shape[0]) if weights is None else weights
        self._weight += float(given.double().sum())
        self._squares += float(given.double().square().sum())
        rows = x.float() if weights is None else x * weights.sqrt()[:, None]
        largest, order = rows.abs().amax(1).sort(descending=True, stable=True)
        start, count = 0, int((largest > 0).sum())
        while start < count:
            close = int((largest[start:count] * _SPREAD >= largest[start]).sum())
            end = start + min(close, _ROWS)
            scale = largest[start] / 127
            codes = (rows[order[start:end]] / scale).round_().to(torch.int8)
            self._add(codes.T.contiguous(), float(scale) ** 2)
            start = end

    def _add(self, codes: Tensor, factor: float) -> None:
        """Add ``factor`` times the upper triangle of codes codesᵀ, int8 [width, n]."""
        for start in range(0, codes.shape[0], _COLUMNS):
            part = codes[start : start + _COLUMNS]
            product = int_matmul(part, codes[start:])
            self._sum[start : start + _COLUMNS, start:].add_(product, alpha=factor)

    def factor(self, damp: float, shrink: float) -> Factor | None:
        """What sequential rounding needs; None if nothing can be learned from the sum.

        Correlations seen in few rows are partly chance, and rounding would fit them: the diagonal
        is multiplied by 1 + ``shrink`` · (width / rows)², with (Σ w)² / Σ w² for the rows. On
        other text, experts of the small model are rounded best when the diagonal is raised by 3 to
        6 at 0.7 rows per channel and by 0.03 at 6; the first power fits one of the two.
        """
        if self._squares > 0:
            rows = self._weight**2 / self._squares
            self._sum.diagonal().mul_(1 + shrink * (self._sum.shape[0] / rows) ** 2)
            self._squares = 0.0
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

        self._factor: list[Factor | None] = []

    def add(self, x: Tensor) -> None:
        for part in (self.moments, self.ranges, self.sample):
            if part is not None:
                part.add(x)

    def rows(self) -> Tensor:
        """The sampled rows, F32 [at most the number wanted, width]."""
        if self.sample is None:
            raise ValueError("no rows were kept")
        return self.sample.rows()

    def factor(self, damp: float, shrink: float) -> Factor | None:
        """The factor of the moments, computed once for all modules that read the input."""
        if self.moments is not None and not self._factor:
            self._factor.append(self.moments.factor(damp, shrink))
        return self._factor[0] if self._factor else None
