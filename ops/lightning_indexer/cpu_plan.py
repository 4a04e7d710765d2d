"""Calls on paged keys whose form was checked: C++ checks the values and computes (ops/plans.py)."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.entry_points import EntryPoints
from glm5_ascend.ops.native import DTYPES, paged
from glm5_ascend.ops.plans import Plan

_FLOAT, _QUANT = "g5_lightning_indexer_paged", "g5_lightning_indexer_quant_paged"
KERNELS = EntryPoints("lightning_indexer", {_FLOAT: "p", _QUANT: "p"})
# Fields of ``PagedCall`` and ``PagedQuantCall`` of csrc/paged.cpp before and behind the sizes.
_POINTERS, _REST = struct.Struct("@7q"), struct.Struct("@8q")
_QUANT_POINTERS, _QUANT_REST = struct.Struct("@9q"), struct.Struct("@10q")


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
    where = block_table, actual_seq_lengths_query, actual_seq_lengths_key
    sizes = _sizes(query, key, where, layout_query, (query, weights))
    if sizes is None or query.dtype not in DTYPES:
        return None
    rows, heads, dim = query.shape
    constant = sizes + _REST.pack(
        DTYPES[query.dtype], DTYPES[weights.dtype], key.stride(1), heads, dim, sparse_count,
        sparse_mode == 3, sorted,
    )  # fmt: skip
    work, shape = _work(query, key, block_table), (rows, 1, sparse_count)

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
        code = KERNELS.get(_FLOAT, work)(pointers + constant)
        return indices if paged.is_answered(code, "lightning_indexer") else None

    return run


def plan_quant(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_scale: Tensor,
    key_scale: Tensor,
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
    """:func:`plan` for int8 codes with a scale per row."""
    where = block_table, actual_seq_lengths_query, actual_seq_lengths_key
    sizes = _sizes(query, key, where, layout_query, (query, weights, query_scale))
    factors = weights.dtype, query_scale.dtype, key_scale.dtype
    if sizes is None or query.dtype != torch.int8 or not all(f in DTYPES for f in factors):
        return None
    rows, heads, dim = query.shape
    constant = sizes + _QUANT_REST.pack(
        *(DTYPES[factor] for factor in factors), key.stride(1), key_scale.stride(1), heads, dim,
        sparse_count, sparse_mode == 3, sorted,
    )  # fmt: skip
    work, shape = _work(query, key, block_table), (rows, 1, sparse_count)

    def run(
        query: Tensor,
        key: Tensor,
        weights: Tensor,
        query_scale: Tensor,
        key_scale: Tensor,
        *,
        block_table: Tensor,
        actual_seq_lengths_query: Tensor,
        actual_seq_lengths_key: Tensor,
        **rest: Any,
    ) -> Tensor | None:
        indices = torch.empty(shape, dtype=torch.int32)
        pointers = _QUANT_POINTERS.pack(
            query.data_ptr(), key.data_ptr(), weights.data_ptr(), query_scale.data_ptr(),
            key_scale.data_ptr(), indices.data_ptr(), actual_seq_lengths_query.data_ptr(),
            actual_seq_lengths_key.data_ptr(), block_table.data_ptr(),
        )  # fmt: skip
        code = KERNELS.get(_QUANT, work)(pointers + constant)
        return indices if paged.is_answered(code, "lightning_indexer_quant") else None

    return run


_Where = tuple[Tensor | None, Tensor | None, Tensor | None]


def _sizes(
    query: Tensor, key: Tensor, where: _Where, layout_query: str, dense: tuple[Tensor, ...]
) -> bytes | None:
    """Sizes of a TND call on paged keys, None if it is another or needs copies of ``dense``.

    ``where`` are block table, prefix sums of query tokens, lengths of keys.
    """
    table, ends, lengths = where
    if layout_query != "TND" or table is None or ends is None or lengths is None:
        return None
    if not all(x.is_contiguous() for x in (*dense, ends, lengths)):
        return None
    if not all(x.numel() for x in (query, key, table, ends)):
        return None
    return paged.sizes(ends, lengths, table, key, query.shape[0])


def _work(query: Tensor, key: Tensor, table: Tensor | None) -> int:
    """Multiplications at most, for a request that uses its whole row of the table."""
    return query.numel() * key.shape[1] * (0 if table is None else table.shape[1])
