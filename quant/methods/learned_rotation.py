"""Refinement of a rotation against the rounding error of what is quantised in its basis.

A row's step is its largest entry over the grid's, so the squared rounding error of a row ``y`` of n
entries grows with ``max_k y_k²`` where its norm stays. The smooth stand-in is
``‖y‖_p² · n^(-2/p)``, p = 8. Three kinds of rows depend on a rotation ``Q``:

* an activation, rounded per token: ``y = x Q``;
* a row of a weight that reads it, rounded per output channel: ``y = w Q``;
* a row of a weight ``W`` that writes it: row j of ``Qᵀ W``, over the input channels of ``W``.

:class:`Rows` are the first two, of mean square 1 each, :class:`Columns` the third, whose norms
change with ``Q`` while their sum stays. The objective is the mean over rows, weighted.

The search stays on the orthogonal group: with the gradient ``G``, ``A = Qᵀ G - Gᵀ Q`` is skew and
``Q (I + τ A / 2)⁻¹ (I - τ A / 2)`` (Cayley) is orthogonal for every step ``τ``; a step is kept only
if the objective falls. Liu et al., "SpinQuant" (2024) learn rotations by Cayley steps on the
model's loss; Wen and Yin, "A feasible method for optimization with orthogonality constraints"
(2013) for the curve and its step sizes. Everything is float64, and the result is polished to
orthogonality by Newton's iteration for the polar factor.

``Q`` multiplies a rotation that is there already, ``R0 · Q``, and is block-diagonal: blocks have
few enough entries that rows which were not looked at gain as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from glm5_ascend.quant import refining

_GROW, _SHRINK = 1.5, 0.4
_MOMENTUM = 0.8
_SMALLEST_STEP = 1e-7
_POLISH = 3
# Elements turned at once (4 MiB in float64); eight times as many take twice as long.
_PIECE = 1 << 19


class Samples(Protocol):
    """A share of the objective."""

    @property
    def weight(self) -> float:
        """Of the mean over these rows."""

    def value_and_slope(self, blocks: Tensor) -> tuple[float, Tensor]:
        """Mean over the rows, and its gradient by ``blocks`` [n, block, block]."""

    def halves(self) -> tuple[Samples, Samples]:
        """What to learn from, and what to judge by."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Activations, or rows of weights that read them: float32 [T, parts, K]; zeros are left out.

    One ``Q`` acts on every part, and one scale serves all parts of a row (heads, for instance).
    ``is_whole`` says that these rows are no sample, but all that will be rounded.
    """

    rows: Tensor
    weight: float = 1.0
    is_whole: bool = False

    def value_and_slope(self, blocks: Tensor) -> tuple[float, Tensor]:
        """As in :class:`Samples`."""
        count, block, _ = blocks.shape
        size, total, slope = self.rows[0].numel(), 0.0, torch.zeros_like(blocks)
        kept = 0
        for piece in _pieces(self.rows):
            power = piece.square().mean((1, 2), keepdim=True)
            keep = power.flatten() > 0
            x = piece[keep] / power[keep].sqrt()
            kept += len(x)
            x = x.reshape(len(x), -1, count, block)
            turned = torch.einsum("tpkb,kbc->tpkc", x, blocks)
            value, change = _norms(turned.reshape(len(x), size))
            total += float(value.sum())
            slope += torch.einsum("tpkb,tpkc->kbc", x, change.view(turned.shape))
        return total / max(kept, 1), slope / max(kept, 1)

    def halves(self) -> tuple[Rows, Rows]:
        """Even and odd rows; all of them for both where they are all there is."""
        if self.is_whole:
            return self, self
        return replace(self, rows=self.rows[::2]), replace(self, rows=self.rows[1::2])


@dataclass(frozen=True, slots=True)
class Columns:
    """Weights that write an activation: float32 [n, K, C], n whole matrices."""

    columns: Tensor
    weight: float = 1.0

    def value_and_slope(self, blocks: Tensor) -> tuple[float, Tensor]:
        """As in :class:`Samples`; every matrix counts with mean square 1."""
        count, block, _ = blocks.shape
        total, slope = 0.0, torch.zeros_like(blocks)
        for piece in _pieces(self.columns):
            power = piece.square().mean((1, 2), keepdim=True).clamp_min(2.0**-500)
            w = (piece / power.sqrt()).reshape(len(piece), count, block, -1)
            turned = torch.einsum("kbc,nkbw->nkcw", blocks, w)
            value, change = _norms(turned.reshape(-1, turned.shape[-1]))
            total += float(value.sum())
            slope += torch.einsum("nkbw,nkcw->kbc", w, change.view(turned.shape))
        rows = self.columns.shape[0] * self.columns.shape[1]
        return total / rows, slope / rows

    def halves(self) -> tuple[Columns, Columns]:
        """All of them for both."""
        return self, self


@dataclass(frozen=True, slots=True)
class Learned:
    """A refinement.

    Attributes:
        blocks: float64 [K / block, block, block], orthogonal, the diagonal of ``Q``.
        before, after: the objective on what was kept back, of what was learned without it.
        steps: accepted steps.
    """

    blocks: Tensor
    before: float
    after: float
    steps: int


def block_size(size: int) -> int:
    """The largest divisor of ``size`` that blocks may have."""
    return max(n for n in range(1, min(size, refining.BLOCK) + 1) if size % n == 0)


def learn_rotation(
    samples: Sequence[Samples], size: int, *, steps: int = refining.STEPS
) -> Learned | None:
    """Refine the rotation of an axis from samples in the basis that is there already.

    Half of the rows say what to do and the others whether it helped; then all go on from there.

    Args:
        samples: with their weights in the objective; at least two rows each.
        size: of the axis, K.
        steps: tried at most with half of the samples, and half as many with all.

    Returns:
        None where the rows kept back gain nothing, or there is no sample.
    """
    if not samples:
        return None
    known, kept = zip(*(one.halves() for one in samples), strict=True)
    block = block_size(size)
    identity = torch.eye(block, dtype=torch.float64).repeat(size // block, 1, 1)
    rotation, first = _search(known, identity, steps)
    before, after = (_objective(kept, one)[0] for one in (identity, rotation))
    if after >= before:
        return None
    rotation, second = _search(samples, rotation, steps // 2)
    return Learned(rotation, before, after, first + second)


def _search(samples: Sequence[Samples], rotation: Tensor, steps: int) -> tuple[Tensor, int]:
    """The blocks after at most ``steps`` steps from ``rotation``, and how many were accepted."""
    value, slope = _objective(samples, rotation)
    step, accepted, direction = 1.0, 0, torch.zeros_like(rotation)
    for _ in range(steps):
        if step < _SMALLEST_STEP:
            break
        skew = rotation.mT @ slope
        direction = _MOMENTUM * direction + (skew - skew.mT) / 2
        candidate = _cayley(rotation, step * direction / _size(direction))
        new, new_slope = _objective(samples, candidate)
        if new < value:
            rotation, value, slope = candidate, new, new_slope
            step, accepted = step * _GROW, accepted + 1
        else:
            step, direction = step * _SHRINK, torch.zeros_like(direction)
    return _polished(rotation), accepted


def _objective(samples: Sequence[Samples], blocks: Tensor) -> tuple[float, Tensor]:
    total, slope, weights = 0.0, torch.zeros_like(blocks), sum(one.weight for one in samples)
    for one in samples:
        value, change = one.value_and_slope(blocks)
        total += value * one.weight / weights
        slope += change * (one.weight / weights)
    return total, slope


def _norms(rows: Tensor) -> tuple[Tensor, Tensor]:
    """``‖y‖_8² · n^(-1/4)`` of each row [N, n], and its gradient by the row."""
    square = rows.square()
    fourth = square.square()
    mean = fourth.square().mean(1).clamp_min(2.0**-900)
    change = rows * square * fourth * (2 / rows.shape[1] * mean.pow(-0.75)).unsqueeze(1)
    return mean.pow(0.25), change


def _pieces(values: Tensor) -> Iterator[Tensor]:
    step = max(1, _PIECE // values[0].numel())
    for start in range(0, len(values), step):
        yield values[start : start + step].double()


def _cayley(rotation: Tensor, skew: Tensor) -> Tensor:
    identity = torch.eye(skew.shape[-1], dtype=torch.float64)
    step: Tensor = torch.linalg.solve(identity + skew / 2, identity - skew / 2)
    return rotation @ step


def _size(direction: Tensor) -> Tensor:
    """Largest spectral norm bound of the blocks, so that a step of 1 turns by at most a radian."""
    return direction.abs().sum(-1).amax().clamp_min(2.0**-100)


def _polished(rotation: Tensor) -> Tensor:
    identity = torch.eye(rotation.shape[-1], dtype=torch.float64)
    for _ in range(_POLISH):
        rotation = rotation @ (1.5 * identity - 0.5 * (rotation.mT @ rotation))
    return rotation
