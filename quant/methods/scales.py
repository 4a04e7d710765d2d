"""Scale of a row by a weighted squared error: clip grid, then least squares."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.quant.methods.grid import SMALLEST_SCALE, Grid

_PIECE = 1 << 16
_LEAST_SQUARES_STEPS = 4


def weighted_scale(weight: Tensor, importance: Tensor | None, grid: Grid) -> Tensor:
    """Scale that minimises ``Σ_j importance_j (w_j - s q_j)²`` per row, over grid and refinements.

    With the pivots of a factorised Hessian as ``importance`` this is the loss that rounding with
    feedback leaves when the feedback does not change the distribution of the weights.

    Args:
        weight: [out, in] float32.
        importance: [in] not negative, or None for equal weights.
        grid: codes, clip candidates and the rule for scales.

    Returns:
        float32 [out, 1], positive; 1 for a row of zeros.
    """
    weights = torch.ones(weight.shape[1]) if importance is None else importance.float()
    scale = torch.empty(weight.shape[0], 1)
    step = max(1, _PIECE // max(1, weight.shape[1]))
    for start in range(0, weight.shape[0], step):
        part = slice(start, start + step)
        scale[part] = _search(weight[part].float(), weights, grid)
    return scale


def _search(rows: Tensor, importance: Tensor, grid: Grid) -> Tensor:
    base = torch.maximum(
        rows.amax(1, keepdim=True) / grid.high, rows.amin(1, keepdim=True) / grid.low
    )
    base = torch.where(base <= SMALLEST_SCALE, torch.ones_like(base), base)
    best = grid.snap(base)
    best_error = _error(rows, best, importance, grid)
    for clip in grid.clips:
        candidate = grid.snap(base * clip)
        error = _error(rows, candidate, importance, grid)
        best = torch.where(error < best_error, candidate, best)
        best_error = torch.minimum(error, best_error)
    for _ in range(_LEAST_SQUARES_STEPS):
        codes = grid.codes(rows, best)
        weighted = codes * importance
        norm = (weighted * codes).sum(1, keepdim=True)
        fitted = (weighted * rows).sum(1, keepdim=True) / norm.clamp_min(SMALLEST_SCALE)
        candidate = grid.snap(torch.where(fitted > SMALLEST_SCALE, fitted, best))
        error = _error(rows, candidate, importance, grid)
        best = torch.where(error < best_error, candidate, best)
        best_error = torch.minimum(error, best_error)
    return best


def _error(rows: Tensor, scale: Tensor, importance: Tensor, grid: Grid) -> Tensor:
    difference = rows - grid.codes(rows, scale) * scale
    return difference.square_() @ importance.unsqueeze(1)
