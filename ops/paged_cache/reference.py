"""Paged cache writer in plain torch."""

from __future__ import annotations

from torch import Tensor


def forward(cache: Tensor, rows: Tensor, slot_mapping: Tensor) -> None:
    """Write rows [T, width] into cache [blocks, block_size, width] at slot_mapping [T]."""
    slots = slot_mapping.long()
    keep = slots >= 0
    if not bool(keep.all()):
        if int(slots.min()) < -1:
            raise ValueError(f"slot {int(slots.min())} is neither -1 nor in the cache")
        slots, rows = slots[keep], rows[keep]
    if slots.numel() and int(slots.max()) >= cache.shape[0] * cache.shape[1]:
        raise ValueError(f"slot {int(slots.max())} lies outside a cache of {tuple(cache.shape)}")
    cache[slots // cache.shape[1], slots % cache.shape[1]] = rows.to(cache.dtype)
