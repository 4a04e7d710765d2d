"""Paged caches in plain torch. Slots were checked: -1 or inside the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.paged_cache.rows import LATENT, PACKED, ROTATED_AT, SCALES_AT, TILE


def forward(cache: Tensor, rows: Tensor, slot_mapping: Tensor) -> None:
    """Write rows [T, width] into cache [blocks, block_size, width] at slot_mapping [T]."""
    slots = slot_mapping.long()
    keep = slots >= 0
    if not bool(keep.all()):
        slots, rows = slots[keep], rows[keep]
    cache[slots // cache.shape[1], slots % cache.shape[1]] = rows.to(cache.dtype)


def pack(latent: Tensor, key_rope: Tensor) -> Tensor:
    """int8 [T, 656] of latent [T, 512] and key_rope [T, 64]; see api.write_kv_rows."""
    tiles = latent.float().view(len(latent), LATENT // TILE, TILE)
    scale = tiles.abs().amax(-1, keepdim=True) / 127
    codes = (tiles / scale.masked_fill(scale == 0, 1)).nan_to_num(0).round()
    # A subnormal scale is coarse: quotients may exceed 127.
    codes = codes.clamp(-127, 127).to(torch.int8)
    parts = codes.flatten(-2), key_rope.to(torch.bfloat16), scale.squeeze(-1)
    return torch.cat([part.contiguous().view(torch.int8) for part in parts], -1)


def unpack(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(latent BF16 [T, 512], key_rope BF16 [T, 64]) of int8 rows [T, 656]."""
    codes, rope, scale = rows[:, :LATENT], rows[:, ROTATED_AT:SCALES_AT], rows[:, SCALES_AT:]
    scale = scale.contiguous().view(torch.float32)[..., None]
    latent = (codes.float().view(len(rows), LATENT // TILE, TILE) * scale).flatten(-2)
    return latent.to(torch.bfloat16), rope.contiguous().view(torch.bfloat16)


def write_kv_rows(cache: Tensor, latent: Tensor, key_rope: Tensor, slot_mapping: Tensor) -> None:
    """Pack latent [T, 512] and key_rope [T, 64] into int8 cache [blocks, block_size, 656]."""
    forward(cache, pack(latent, key_rope), slot_mapping)


def read_kv_rows(cache: Tensor, slot_mapping: Tensor) -> tuple[Tensor, Tensor]:
    """(latent BF16 [T, 512], key_rope BF16 [T, 64]) of the rows at slot_mapping [T]."""
    slots = slot_mapping.long()
    where = slots.clamp(min=0)
    rows = cache[where // cache.shape[1], where % cache.shape[1]] if cache.numel() else None
    if rows is None:
        rows = cache.new_zeros(len(slots), PACKED)
    latent, key_rope = unpack(rows)
    hidden = (slots < 0)[:, None]
    return latent.masked_fill_(hidden, 0), key_rope.masked_fill_(hidden, 0)
