"""GPTQ for one symmetric scale per output channel, int4 or int8.

Columns are rounded one after the other; before column j is rounded, the error of the columns
before it is fed back: ``t_j = w_j + Σ_{i<j} (w_i - ŵ_i) U_ij``, ``ŵ_j = s · clip(round(t_j / s))``
with ``H = (I + U) D (I + U)ᵀ`` (:mod:`.hessian`). The loss of a row is then exactly
``Σ_j D_j (t_j - ŵ_j)²``, which is also what the scale is chosen by. Frantar et al.,
"GPTQ" (2022) in the form of Chee et al., "QuIP" (2023). Nothing is inverted: a row of K weights
costs K² products instead of 2 K², and the factor K³/3 instead of 4 K³/3.

Products are float32 and blocked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.quant.methods.grid import Grid
from glm5_ascend.quant.methods.hessian import Factor
from glm5_ascend.quant.methods.scales import weighted_scale

_BLOCK = 256
_INNER = 32
# Weights that the innermost loop works on: _INNER rows of error of so many channels stay in L2.
_CHANNELS = 4096


@dataclass(frozen=True, slots=True)
class Rounded:
    """A rounded matrix.

    Attributes:
        codes: int8 [out, in].
        scale: float32 [out, 1], exact in what the engine stores.
        loss: float64 [out], ``(w - s q) (H + λI) (w - s q)ᵀ``; without Hessian Σ (w - s q)².
        calibrated: False where there was no usable Hessian and the result is data-free.
    """

    codes: Tensor
    scale: Tensor
    loss: Tensor
    calibrated: bool


def gptq(
    weight: Tensor,
    factor: Factor | None,
    grid: Grid,
    *,
    scale: Tensor | None = None,
) -> Rounded:
    """Round ``weight`` so that its outputs change least on the inputs behind ``factor``.

    Args:
        weight: [out, in] float32, finite.
        factor: of the inputs' Hessian; None rounds to nearest with the best data-free scale.
        grid: codes and scales.
        scale: float32 [out, 1]; None searches the one of the smallest pivot-weighted error.

    Returns:
        Codes in the order of ``weight``'s columns; never NaN.
    """
    if factor is None:
        chosen = weighted_scale(weight, None, grid) if scale is None else scale
        codes = grid.codes(weight, chosen)
        loss = (weight - codes * chosen).double().square().sum(1)
        return Rounded(codes.to(torch.int8), chosen, loss, calibrated=False)
    if scale is None:
        scale = weighted_scale(weight, factor.importance(), grid)
    # Rows are columns from here on, in the order of rounding.
    columns = weight.float().T.contiguous().index_select(0, factor.order)
    codes = torch.empty(columns.shape, dtype=torch.int8)
    loss = torch.empty(columns.shape[1], dtype=torch.float64)
    for start in range(0, columns.shape[1], _CHANNELS):
        part = slice(start, start + _CHANNELS)
        target = columns[:, part].contiguous()
        rounded, residual = _round(target, factor, scale[part, 0], grid)
        loss[part] = residual.square_().T.double() @ factor.pivots.double()
        codes[:, part] = rounded.to(torch.int8)
    stored = torch.empty_like(codes)
    stored[factor.order] = codes
    return Rounded(stored.T.contiguous(), scale, loss, calibrated=True)


def _round(target: Tensor, factor: Factor, step: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Codes and ``t - ŵ``, float32 [in, out], of ``target`` [in, out] in the order of rounding."""
    upper = factor.feedback
    size = target.shape[0]
    error, codes, residual = (torch.empty_like(target) for _ in range(3))
    for block in range(0, size, _BLOCK):
        end = min(block + _BLOCK, size)
        work = target[block:end].clone()
        if block:
            work.addmm_(upper[:block, block:end].T, error[:block])
        for inner in range(block, end, _INNER):
            stop = min(inner + _INNER, end)
            if inner > block:
                feedback = upper[block:inner, inner:stop]
                work[inner - block : stop - block].addmm_(feedback.T, error[block:inner])
            for j in range(inner, stop):
                value = work[j - block]
                if j > inner:
                    value.addmv_(error[inner:j].T, upper[inner:j, j])
                torch.div(value, step, out=codes[j])
                codes[j].round_().clamp_(grid.low, grid.high)
                torch.addcmul(value, codes[j], step, value=-1, out=residual[j])
                torch.addcmul(target[j], codes[j], step, value=-1, out=error[j])
    return codes, residual
