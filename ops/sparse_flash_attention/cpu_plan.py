"""Calls on paged keys whose form was checked: C++ checks the values and computes (ops/plans.py)."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.entry_points import EntryPoints
from glm5_ascend.ops.native import DTYPES, paged
from glm5_ascend.ops.plans import Plan

_ENTRY = "g5_sparse_flash_attention_paged"
KERNELS = EntryPoints("sparse_flash_attention", {"g5_sparse_flash_attention": "p", _ENTRY: "p"})
# ``struct Call`` of csrc/call.h field by field: all are int64 or pointers but one, the scale.
CALL = struct.Struct("@39qd3q")
# What comes first in ``struct PagedCall`` of csrc/paged.cpp: what changes from call to call.
_POINTERS = struct.Struct("@10q")


def plan(
    query: Tensor,
    key: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    query_rope: Tensor | None,
    key_rope: Tensor | None,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    sparse_mode: int = 3,
    **rest: Any,
) -> Plan | None:
    """A function for calls of the operator that have this form, without values and softmax sums.

    Returns:
        None for a form that is no TND query with rotated parts over paged keys, or that needs
        copies.
    """
    ends, lengths = actual_seq_lengths_query, actual_seq_lengths_kv
    tensors = [query, query_rope, key, key_rope, sparse_indices, block_table, ends, lengths]
    given = [tensor for tensor in tensors if tensor is not None]
    if layout_query != "TND" or len(given) < len(tensors) or query.dtype not in DTYPES:
        return None
    query, query_rope, key, key_rope, _, table, ends, lengths = given
    if not all(x.numel() and x.stride(-1) == 1 for x in given):
        return None
    shape, dtype = query.shape, query.dtype
    entries = sparse_indices.shape[2], sparse_indices.stride(0), sparse_block_size
    constant = paged.sizes(ends, lengths, table, key, shape[0]) + _call(
        (query, query_rope), (key, key_rope, key), entries, scale_value, sparse_mode == 3
    )
    work = query.numel() * entries[0] * sparse_block_size * 3

    def run(
        query: Tensor,
        key: Tensor,
        sparse_indices: Tensor,
        query_rope: Tensor,
        key_rope: Tensor,
        *,
        block_table: Tensor,
        actual_seq_lengths_query: Tensor,
        actual_seq_lengths_kv: Tensor,
        **rest: Any,
    ) -> Tensor | None:
        out = torch.empty(shape, dtype=dtype)
        first = key.data_ptr()
        pointers = _POINTERS.pack(
            query.data_ptr(), query_rope.data_ptr(), first, key_rope.data_ptr(), first,
            sparse_indices.data_ptr(), out.data_ptr(), actual_seq_lengths_query.data_ptr(),
            actual_seq_lengths_kv.data_ptr(), block_table.data_ptr(),
        )  # fmt: skip
        code = KERNELS.get(_ENTRY, work)(pointers + constant)
        return out if paged.is_answered(code, "sparse_flash_attention") else None

    return run


def _call(
    queries: tuple[Tensor, Tensor],
    caches: tuple[Tensor, Tensor, Tensor],
    entries: tuple[int, int, int],
    scale: float,
    causal: bool,
) -> bytes:
    """``struct Call`` without addresses and without what ``struct Paged`` says.

    ``entries`` are indices of a row, how far rows of them lie apart, and positions per index.
    """
    query, key = queries[0], caches[0]
    size, (count, row, block) = query.element_size(), entries
    places = [(0, q.stride(0) * size, q.stride(1) * size, q.shape[2]) for q in queries]
    places += [(0, k.stride(1) * size, 0, k.shape[3]) for k in caches]
    return CALL.pack(
        *(number for place in places for number in place), 2, DTYPES[query.dtype], -1,
        *query.shape[:2], key.shape[0] * key.shape[1], 0, row, count, block, causal, *[0] * 8,
        scale, *[0] * 3,
    )  # fmt: skip
