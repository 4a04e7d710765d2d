"""Calls on paged keys whose form was checked: C++ checks the values and computes (ops/plans.py)."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.entry_points import EntryPoints
from glm5_ascend.ops.native import DTYPES, check, paged
from glm5_ascend.ops.plans import Plan

_ENTRY = "g5_lightning_indexer_paged"
KERNELS = EntryPoints("lightning_indexer", {_ENTRY: "p"})
# ``struct PagedCall`` of csrc/paged.cpp: first what changes from call to call, last the rest.
_POINTERS, _REST = struct.Struct("@7q"), struct.Struct("@8q")


def plan(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    sorted: bool = False,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    layout_query: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    **rest: Any,
) -> Plan | None:
    """A function for calls of the operator that have this form, without scores.

    Returns:
        None for a form that is no TND query over paged keys, or that needs copies.
    """
    table, ends, lengths = block_table, actual_seq_lengths_query, actual_seq_lengths_key
    if layout_query != "TND" or table is None or ends is None or lengths is None:
        return None
    tensors = (query, key, weights, table, ends, lengths)
    dense = all(x.is_contiguous() for x in (query, weights, ends, lengths))
    if query.dtype not in DTYPES or not dense or not all(x.numel() for x in tensors):
        return None
    rows, heads, dim = query.shape
    constant = paged.sizes(ends, lengths, table, key, rows) + _REST.pack(
        DTYPES[query.dtype], DTYPES[weights.dtype], key.stride(1), heads, dim, sparse_count,
        sparse_mode == 3, sorted,
    )  # fmt: skip
    work = rows * heads * dim * table.shape[1] * key.shape[1]
    shape = (rows, 1, sparse_count)

    def run(
        query: Tensor,
        key: Tensor,
        weights: Tensor,
        *,
        block_table: Tensor,
        actual_seq_lengths_query: Tensor,
        actual_seq_lengths_key: Tensor,
        **rest: Any,
    ) -> Tensor | None:
        indices = torch.empty(shape, dtype=torch.int32)
        pointers = _POINTERS.pack(
            query.data_ptr(), key.data_ptr(), weights.data_ptr(), indices.data_ptr(),
            actual_seq_lengths_query.data_ptr(), actual_seq_lengths_key.data_ptr(),
            block_table.data_ptr(),
        )  # fmt: skip
        code = KERNELS.get(_ENTRY, work)(pointers + constant)
        if code == paged.REFUSED:
            return None
        if code:
            check(code, "lightning_indexer")
        return indices

    return run
