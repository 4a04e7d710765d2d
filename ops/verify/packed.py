"""Packed cache rows of 656 bytes once more, in NumPy: 512 int8 | 64 BF16 | 4 F32 scales."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LATENT, TILE, WIDTH = 512, 128, 656
SCALES_AT = WIDTH - 4 * LATENT // TILE


def pack(latent: Tensor, key_rope: Tensor, *, levels: int = 127, tile: int = TILE) -> Tensor:
    """int8 [T, 656] of latent [T, 512] and key_rope [T, 64]; the rest plants mistakes."""
    rows = np.zeros((len(latent), WIDTH), np.int8)
    tiles = latent.float().numpy().reshape(len(latent), LATENT // tile, tile)
    scale = np.abs(tiles).max(-1, keepdims=True) / np.float32(levels)
    with np.errstate(invalid="ignore"):
        codes = np.rint(tiles / np.where(scale == 0, 1, scale)).clip(-127, 127)
    codes = np.where(np.isfinite(scale), codes, 0)
    rows[:, :LATENT] = codes.reshape(len(latent), LATENT)
    rows[:, LATENT:SCALES_AT] = key_rope.bfloat16().view(torch.int8).numpy()
    each = np.repeat(scale[..., 0], tile // TILE, 1)
    rows[:, SCALES_AT:] = np.ascontiguousarray(each).view(np.int8)
    return torch.from_numpy(rows)


def unpack(rows: Tensor) -> tuple[Tensor, Tensor]:
    """BF16 (latent [T, 512], key_rope [T, 64]) of packed rows."""
    scale = rows[:, SCALES_AT:].numpy().copy().view(np.float32)
    codes = rows[:, :LATENT].float().numpy()
    with np.errstate(invalid="ignore"):
        latent = torch.from_numpy(codes * np.repeat(scale, TILE, 1)).bfloat16()
    rope = rows[:, LATENT:SCALES_AT].numpy().copy().view(np.int16)
    return latent, torch.from_numpy(rope).view(torch.bfloat16)
