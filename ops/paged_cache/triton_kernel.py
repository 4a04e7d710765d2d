"""Paged caches in Triton. Slots were checked: -1 or inside the cache.

Not run on a GPU yet: Triton's interpreter runs the kernels, its compiler builds them for sm_90a.
Packed rows have the reference's bits, but for those of NaN.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from glm5_ascend.ops.paged_cache.rows import LATENT, ROTATED, TILE
from glm5_ascend.ops.paged_cache.triton_source import read_packed, write_packed, write_rows
from glm5_ascend.ops.triton.runtime import INTERPRETED, check_device, padded

COLUMNS = 1024  # of a program that copies
WARPS = 4
# Rows are copied as integers of their size, whatever they hold.
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def forward(cache: Tensor, rows: Tensor, slot_mapping: Tensor) -> None:
    """Write rows [T, width] into cache [blocks, block_size, width] at slot_mapping [T].

    Raises:
        ArgumentError: a tensor that is not on a CUDA device.
    """
    check_device(cache)
    if not rows.numel():
        return
    word = _WORDS[min(8, cache.element_size())]
    rows, cache = rows.to(cache.dtype).view(word), cache.view(word)
    tokens, width = rows.shape
    columns = min(COLUMNS, padded(width))
    write_rows[(tokens, triton.cdiv(width, columns))](
        cache, row_stride(cache), rows, rows.stride(0), slot_mapping.contiguous(), width,
        BN=columns, num_warps=WARPS,
    )  # fmt: skip


def write_kv_rows(cache: Tensor, latent: Tensor, key_rope: Tensor, slot_mapping: Tensor) -> None:
    """Pack latent [T, 512] and key_rope [T, 64] into int8 cache [blocks, block_size, 656].

    Raises:
        ArgumentError: a tensor that is not on a CUDA device.
    """
    check_device(cache)
    if not len(latent):
        return
    if latent.dtype == torch.float64:
        latent = latent.float()
    if key_rope.dtype == torch.float64:
        key_rope = key_rope.to(torch.bfloat16)
    write_packed[(len(latent),)](
        cache, row_stride(cache), latent, latent.stride(0), key_rope, key_rope.stride(0),
        slot_mapping.contiguous(),
        L=LATENT, TILE=TILE, R=ROTATED, INTERPRET=INTERPRETED, num_warps=WARPS,
    )  # fmt: skip


def read_kv_rows(cache: Tensor, slot_mapping: Tensor) -> tuple[Tensor, Tensor]:
    """(latent BF16 [T, 512], key_rope BF16 [T, 64]) of the rows at slot_mapping [T].

    Raises:
        ArgumentError: a tensor that is not on a CUDA device.
    """
    check_device(cache)
    tokens = len(slot_mapping)
    latent = torch.empty(tokens, LATENT, dtype=torch.bfloat16, device=cache.device)
    key_rope = torch.empty(tokens, ROTATED, dtype=torch.bfloat16, device=cache.device)
    if tokens:
        read_packed[(tokens,)](
            cache, row_stride(cache), slot_mapping.contiguous(), latent,
            key_rope.view(torch.int16),
            L=LATENT, TILE=TILE, R=ROTATED, INTERPRET=INTERPRETED, num_warps=WARPS,
        )  # fmt: skip
    return latent, key_rope


def row_stride(cache: Tensor) -> int:
    """Elements from slot to slot; an axis of one row may have any stride."""
    return cache.stride(-2) if cache.shape[-2] > 1 else cache.stride(0)
