"""Packed cache rows of 656 bytes once more, in NumPy: 512 int8 | 64 BF16 | 4 F32 scales."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
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


# The e4m3 row of FlashMLA: codes, then scales, then the rotated key.
FP8_ROTATED_AT = LATENT + 4 * LATENT // TILE
_GREATEST = 448  # e4m3


def pack_fp8(latent: Tensor, key_rope: Tensor, scale: Tensor | None = None) -> Tensor:
    """e4m3 [T, 656] of latent [T, 512] and key_rope [T, 64].

    ``scale`` F32 [T, 4] replaces max / 448 of each tile; quotients beyond 448 saturate.
    """
    tiles = latent.float().numpy().reshape(len(latent), LATENT // TILE, TILE)
    if scale is None:
        each = np.abs(tiles).max(-1) / np.float32(_GREATEST)
    else:
        each = scale.numpy().astype(np.float32)
    quotients = tiles / np.where(each == 0, 1, each)[..., None]
    codes = torch.from_numpy(quotients.clip(-_GREATEST, _GREATEST).astype(np.float32))
    rows = np.zeros((len(latent), WIDTH), np.int8)
    rows[:, :LATENT] = codes.flatten(-2).to(torch.float8_e4m3fn).view(torch.int8).numpy()
    rows[:, LATENT:FP8_ROTATED_AT] = np.ascontiguousarray(each).view(np.int8)
    rows[:, FP8_ROTATED_AT:] = key_rope.bfloat16().view(torch.int8).numpy()
    return torch.from_numpy(rows).view(torch.float8_e4m3fn)


def e4m3_values() -> NDArray[np.float32]:
    """F32 [256]: what each code means: sign, exponent of 4 bits (bias 7), 3 bits; NaN at 127, 255.

    Subnormal codes count 2^-9.
    """
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    normal = np.ldexp(1 + fraction / 8, exponent - 7)
    value = np.where(exponent == 0, fraction / 512, normal) * np.where(code < 128, 1, -1)
    return np.where(code & 127 == 127, np.nan, value).astype(np.float32)


def unpack_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """BF16 (latent [T, 512], key_rope [T, 64]) of packed e4m3 rows."""
    raw = rows.view(torch.uint8).numpy()
    scale = raw[:, LATENT:FP8_ROTATED_AT].copy().view(np.float32)
    codes = e4m3_values()[raw[:, :LATENT]]
    with np.errstate(invalid="ignore"):
        latent = torch.from_numpy(codes * np.repeat(scale, TILE, 1)).bfloat16()
    rope = raw[:, FP8_ROTATED_AT:].copy().view(np.int16)
    return latent, torch.from_numpy(rope).view(torch.bfloat16)
