"""Paged caches in C++ (csrc/). Slots were checked: -1 or inside the cache.

Same bits as the reference, but for those of NaN; of two rows for one slot the later one stays.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from glm5_ascend.ops.entry_points import EntryPoints
from glm5_ascend.ops.native import DTYPES, check, paged
from glm5_ascend.ops.paged_cache.rows import LATENT, ROTATED
from glm5_ascend.ops.plans import Plan

KERNELS = EntryPoints(
    "paged_cache",
    {
        "g5_write_rows": "pnpnnpin",
        "g5_write_checked_rows": "pppp",
        "g5_write_kv_rows": "pnipnpnpin",
        "g5_read_kv_rows": "pnpinpp",
    },
)
_WRITING = struct.Struct("@6q")  # of csrc/paged_cache.cpp
# The functions use one thread, so none of them counts as large.
_WORK = 0


def forward(cache: Tensor, rows: Tensor, slot_mapping: Tensor) -> None:
    """Write rows [T, width] into cache [blocks, block_size, width] at slot_mapping [T].

    Raises:
        BackendUnavailable: the kernels cannot be compiled here.
    """
    rows, slots = rows.to(cache.dtype), slot_mapping.contiguous()
    code = KERNELS.get("g5_write_rows", _WORK)(
        *_cache(cache),
        rows.data_ptr(),
        rows.stride(0) * rows.element_size(),
        rows.shape[1] * rows.element_size(),
        *_slots(slots),
        len(rows),
    )
    check(code, "write_paged_rows")


def plan(cache: Tensor, rows: Tensor, slot_mapping: Tensor) -> Plan | None:
    """Takes the same of this form, where no copy is needed; False for a slot outside the cache."""
    if rows.dtype != cache.dtype or not slot_mapping.is_contiguous() or not cache.numel():
        return None
    size = rows.element_size()
    constant = _WRITING.pack(
        _cache(cache)[1], rows.stride(0) * size, rows.shape[1] * size, _slots(slot_mapping)[1],
        len(rows), cache.shape[0] * cache.shape[1],
    )  # fmt: skip

    def run(cache: Tensor, rows: Tensor, slot_mapping: Tensor) -> bool:
        code = KERNELS.get("g5_write_checked_rows", _WORK)(
            cache.data_ptr(), rows.data_ptr(), slot_mapping.data_ptr(), constant
        )
        return paged.is_answered(code, "write_paged_rows")

    return run


def write_kv_rows(cache: Tensor, latent: Tensor, key_rope: Tensor, slot_mapping: Tensor) -> None:
    """Pack latent [T, 512] and key_rope [T, 64] into int8 cache [blocks, block_size, 656].

    Raises:
        BackendUnavailable: the kernels cannot be compiled here.
    """
    if latent.dtype not in DTYPES:
        latent = latent.float()
    key_rope, slots = key_rope.to(torch.bfloat16), slot_mapping.contiguous()
    code = KERNELS.get("g5_write_kv_rows", _WORK)(
        *_cache(cache),
        DTYPES[latent.dtype],
        latent.data_ptr(),
        latent.stride(0) * latent.element_size(),
        key_rope.data_ptr(),
        key_rope.stride(0) * key_rope.element_size(),
        *_slots(slots),
        len(latent),
    )
    check(code, "write_kv_rows")


def read_kv_rows(cache: Tensor, slot_mapping: Tensor) -> tuple[Tensor, Tensor]:
    """(latent BF16 [T, 512], key_rope BF16 [T, 64]) of the rows at slot_mapping [T].

    Raises:
        BackendUnavailable: the kernels cannot be compiled here.
    """
    slots, tokens = slot_mapping.contiguous(), len(slot_mapping)
    latent = torch.empty(tokens, LATENT, dtype=torch.bfloat16)
    key_rope = torch.empty(tokens, ROTATED, dtype=torch.bfloat16)
    address, stride = _cache(cache)
    code = KERNELS.get("g5_read_kv_rows", _WORK)(
        address, stride, *_slots(slots), tokens, latent.data_ptr(), key_rope.data_ptr()
    )
    check(code, "read_kv_rows")
    return latent, key_rope


def _cache(cache: Tensor) -> tuple[int, int]:
    """First byte and bytes from slot to slot; all slots lie at one distance."""
    if cache.shape[1] > 1:
        return cache.data_ptr(), cache.stride(1) * cache.element_size()
    return cache.data_ptr(), cache.stride(0) * cache.element_size()


def _slots(slots: Tensor) -> tuple[int, bool]:
    """First number and whether it has 64 bits."""
    return slots.data_ptr(), slots.dtype == torch.int64
