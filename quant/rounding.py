"""Data-free rounding of weights to int8 and int4, one symmetric scale per output channel.

Both minimise the squared error of each row over its scale: a grid of clip points around the
extreme value, then least squares (codes fixed, best scale; scale fixed, best codes) from the
best point. All arithmetic is float32 or float64, never the model's bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Rows are searched in pieces that stay in a core's cache.
_PIECE = 1 << 16
_INT8_CLIPS = torch.linspace(0.60, 1.02, 43, dtype=torch.float64)
_INT4_CLIPS = torch.linspace(0.28, 1.04, 39, dtype=torch.float64)
_LEAST_SQUARES_STEPS = 8
_SMALLEST_SCALE = 2.0**-100

Snap = Callable[[Tensor], Tensor]


def round_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round to int8 with BF16-exact scales.

    The engine keeps W8A8_DYNAMIC scales in the model's bfloat16, so each scale is rounded to
    bfloat16 before the codes are computed for it.

    Args:
        weight: [out, in], float32 or float64, finite.

    Returns:
        codes int8 [out, in] in [-128, 127] and scale float32 [out, 1], exact in bfloat16.
    """
    return _search(weight, -128, 127, _INT8_CLIPS, _to_bfloat16)


def round_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round to int4 with float32 scales.

    Args:
        weight: [out, in], float32 or float64, finite.

    Returns:
        codes int8 [out, in] in [-8, 7] and scale float32 [out, 1].
    """
    return _search(weight, -8, 7, _INT4_CLIPS, _to_float32)


def relative_error(weight: Tensor, codes: Tensor, scale: Tensor) -> float:
    """Σ (W - scale · codes)² / Σ W² in float64."""
    exact = weight.double()
    error = exact - codes.double() * scale.double()
    return float(error.square().sum() / exact.square().sum())


def _search(
    weight: Tensor, low: int, high: int, clips: Tensor, snap: Snap
) -> tuple[Tensor, Tensor]:
    work = weight.float()
    codes = torch.empty(work.shape, dtype=torch.int8, device=work.device)
    scale = torch.empty(work.shape[0], 1, dtype=torch.float32, device=work.device)
    step = max(1, _PIECE // max(1, work.shape[1]))
    for start in range(0, work.shape[0], step):
        part = slice(start, start + step)
        scale[part] = _best_scale(work[part], low, high, clips, snap)
        codes[part] = _codes(work[part], scale[part], low, high).to(torch.int8)
    return codes, scale


def _best_scale(rows: Tensor, low: int, high: int, clips: Tensor, snap: Snap) -> Tensor:
    """Scale [rows, 1] of the smallest squared error among grid points and least-squares steps."""
    base = torch.maximum(rows.amax(1, keepdim=True) / high, rows.amin(1, keepdim=True) / low)
    is_zero = base <= _SMALLEST_SCALE
    base = torch.where(is_zero, torch.ones_like(base), base)
    best = snap(base)
    best_error, _ = _error(rows, best, low, high)
    for clip in clips.tolist():
        best, best_error = _keep_better(rows, snap(base * clip), best, best_error, low, high)
    for _ in range(_LEAST_SQUARES_STEPS):
        codes = _codes(rows, best, low, high)
        norm = codes.square().sum(1, keepdim=True)
        fitted = (rows * codes).sum(1, keepdim=True) / norm.clamp_min(1.0)
        candidate = snap(torch.where(fitted > _SMALLEST_SCALE, fitted, best))
        if torch.equal(candidate, best):
            break
        best, best_error = _keep_better(rows, candidate, best, best_error, low, high)
    return best


def _keep_better(
    rows: Tensor, candidate: Tensor, best: Tensor, best_error: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    error, _ = _error(rows, candidate, low, high)
    is_better = error < best_error
    return torch.where(is_better, candidate, best), torch.where(is_better, error, best_error)


def _error(rows: Tensor, scale: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    codes = _codes(rows, scale, low, high)
    return (rows - codes * scale).square_().sum(1, keepdim=True), codes


def _codes(rows: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    return torch.round(rows / scale).clamp_(low, high)


def _to_bfloat16(scale: Tensor) -> Tensor:
    return scale.to(torch.bfloat16).float()


def _to_float32(scale: Tensor) -> Tensor:
    return scale
