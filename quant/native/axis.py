"""Rotations of one axis in the form that the kernels read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glm5_ascend.quant.folding import Axis
from glm5_ascend.quant.native.errors import NoKernel
from glm5_ascend.quant.rotation import Form, Orthogonal


@dataclass(frozen=True, slots=True)
class KernelAxis:
    """One axis as in ``csrc/axis.h``.

    Attributes:
        segments: int64 [count, 5]: offset, width, order of Paley's matrix, block, shift.
        factors: float32 [size] that the elements are multiplied with first, or None.
        again: float32 [block] before the second rotation of a shifted segment, or None.
        after: float32 [size] that the elements are multiplied with last, or None.
    """

    segments: NDArray[np.int64]
    factors: Tensor | None
    again: Tensor | None
    after: Tensor | None


def kernel_axis(
    axis: Axis | None,
    matrices: Mapping[str, Orthogonal],
    factors: Tensor | None = None,
    after: Tensor | None = None,
) -> KernelAxis:
    """Lay out ``axis`` between multiplications with ``factors`` and ``after``, float64 [size].

    Random signs and the norm 1/√n join the factors in float64, which are rounded to float32 once.

    Raises:
        NoKernel: a matrix that is known by its action only, or two shifted ones that differ.
    """
    last = None if after is None else after.float()
    if axis is None:
        none = np.empty((0, 5), dtype=np.int64)
        return KernelAxis(none, None if factors is None else factors.float(), None, last)
    everything = torch.ones(axis.size, dtype=torch.float64) if factors is None else factors.clone()
    rows: list[tuple[int, int, int, int, int]] = []
    again: Tensor | None = None
    offset = 0
    for name, width in axis.segments * axis.repeat:
        if name is not None:
            form = _form(matrices[name])
            signs = form.signs / sqrt(form.block)
            everything[offset : offset + width] *= signs.repeat(width // form.block)
            rows.append((offset, width, form.order, form.block, form.shift))
            if form.shift:
                if again is not None and not torch.equal(again, signs.float()):
                    raise NoKernel(f"two rotations with shifted blocks on one axis, {name}")
                again = signs.float()
        offset += width
    segments = np.array(_joined(rows), dtype=np.int64).reshape(-1, 5)
    return KernelAxis(segments, everything.float(), again, last)


def _form(matrix: Orthogonal) -> Form:
    if matrix.form is None or matrix.refinement is not None:
        raise NoKernel(f"the rotation {matrix.name}, which is no Hadamard matrix")
    return matrix.form


def _joined(
    rows: list[tuple[int, int, int, int, int]],
) -> list[tuple[int, int, int, int, int]]:
    """Heads that follow each other are one segment of several blocks."""
    joined: list[tuple[int, int, int, int, int]] = []
    for offset, width, *form in rows:
        if joined and not form[2]:
            before, length, *same = joined[-1]
            if same == form and before + length == offset:
                joined[-1] = (before, length + width, form[0], form[1], form[2])
                continue
        joined.append((offset, width, form[0], form[1], form[2]))
    return joined
