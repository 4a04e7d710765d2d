"""Coordinate descent on the codes of a rounded matrix: every code in turn takes its best value.

With error ``e = w - s q`` and gradient ``g = e H`` the best code j, all others fixed, is
``clip(round(q_j + g_j / (s H_jj)))``; the loss ``e H eᵀ`` never grows. Behdin et al., "QuantEase"
(2023), started from GPTQ's codes instead of the float weights. A sweep costs 2 K² products per row
of K weights, twice GPTQ itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.quant.methods.gptq import Rounded
from glm5_ascend.quant.methods.grid import SMALLEST_SCALE, Grid
from glm5_ascend.quant.methods.hessian import Factor

_BLOCK = 256
_INNER = 32


def descend(
    weight: Tensor, start: Rounded, factor: Factor | None, grid: Grid, *, sweeps: int = 1
) -> Rounded:
    """Improve ``start`` by ``sweeps`` passes over the columns, each followed by a refit of scales.

    Args:
        weight: [out, in] float32, the matrix that ``start`` rounds.
        start: codes and scales; returned as it is without a factor.
        factor: what ``start`` was made with.
        grid: the grid of ``start``.
        sweeps: passes over all columns.
    """
    if factor is None or sweeps == 0:
        return start
    damped = factor.hessian()
    target = weight.float().T.contiguous()
    codes, step = start.codes.float().T.contiguous(), start.scale.squeeze(1).clone()
    for _ in range(sweeps):
        error = torch.addcmul(target, codes, step, value=-1)
        _sweep(codes, error, step, damped, grid)
        step, loss = _refit(codes, target, step, damped, grid)
    return Rounded(codes.T.contiguous().to(torch.int8), step.unsqueeze(1), loss, calibrated=True)


def _sweep(codes: Tensor, error: Tensor, step: Tensor, hessian: Tensor, grid: Grid) -> None:
    """One pass over the transposed codes and errors [in, out], both changed in place."""
    size = codes.shape[0]
    pull = 1.0 / hessian.diagonal()
    for block in range(0, size, _BLOCK):
        end = min(block + _BLOCK, size)
        gradient = hessian[block:end] @ error
        change = torch.empty_like(gradient)
        for inner in range(0, end - block, _INNER):
            stop = min(inner + _INNER, end - block)
            if inner:
                coupling = hessian[block : block + inner, block + inner : block + stop]
                gradient[inner:stop].addmm_(coupling.T, change[:inner])
            for j in range(inner, stop):
                column = block + j
                if j > inner:
                    coupling = hessian[block + inner : column, column]
                    gradient[j].addmv_(change[inner:j].T, coupling)
                best = gradient[j] * pull[column] / step
                best.add_(codes[column]).round_().clamp_(grid.low, grid.high)
                torch.mul(codes[column] - best, step, out=change[j])
                codes[column] = best
        error[block:end] += change


def _refit(
    codes: Tensor, target: Tensor, step: Tensor, hessian: Tensor, grid: Grid
) -> tuple[Tensor, Tensor]:
    """Least-squares scales of fixed codes where their snapped value helps, and the loss [out]."""
    error = torch.addcmul(target, codes, step, value=-1)
    spread = hessian @ codes
    norm = (spread * codes).sum(0)
    slope = (spread * error).sum(0)
    fitted = grid.snap(step + slope / norm.clamp_min(SMALLEST_SCALE))
    change = fitted - step
    is_better = (fitted > SMALLEST_SCALE) & (change * (2 * slope - change * norm) > 0)
    step = torch.where(is_better, fitted, step)
    error = torch.addcmul(target, codes, step, value=-1).double()
    loss = ((hessian.double() @ error) * error).sum(0)
    return step, loss
