"""Rounding to nearest with the scale of each row's extreme value: the plain baseline."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST_SCALE = 2.0**-100


def round_nearest(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Round to ``bits`` with ``scale = max |w| / (2^(bits-1) - 1)`` per row.

    Args:
        weight: [out, in], float32 or float64, finite.
        bits: 4 or 8; scales of 8 bits are rounded to bfloat16 first, the engine's type for them.

    Returns:
        codes int8 [out, in] in [-2^(bits-1), 2^(bits-1) - 1] and scale float32 [out, 1].
    """
    work = weight.float()
    high = 2 ** (bits - 1) - 1
    scale = work.abs().amax(1, keepdim=True) / high
    scale = torch.where(scale <= _SMALLEST_SCALE, torch.ones_like(scale), scale)
    if bits == 8:
        scale = scale.bfloat16().float()
    return torch.round(work / scale).clamp_(-high - 1, high).to(torch.int8), scale
