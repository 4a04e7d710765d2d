"""Lightning indexer in C++ (csrc/): scores fused with ReLU and head weights, exact selection.

A row's bits depend on its own query token and the keys of its request only: not on the batch, the
block table, nor the number of threads. They differ between instruction sets in the last bits of
the scores. With AVX-512 subnormal bf16 inputs count as zero.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import chain
from typing import cast

import torch
from torch import Tensor

from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.lightning_indexer.cpu_plan import KERNELS, plan, plan_quant
from glm5_ascend.ops.native import DTYPES, address, check, library

__all__ = ["KERNELS", "forward", "forward_quant", "plan", "plan_quant"]

_NOTHING = torch.empty(0, dtype=torch.float32)
_P, _I, _N = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_WHERE = (_N, _N, _N, _N, _P, _P, _N, _N, _N, _I, _I, _P)
_FLOAT = (_I, _P, _P, _N, _I, _P, *_WHERE, _P)
_QUANT = (_P, _P, _N, _I, _P, _I, _P, _I, _P, _N, *_WHERE)


def forward(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    requests: Queries,
    keys: Keys,
    sparse_count: int,
    *,
    causal: bool,
    sorted: bool = False,
    return_value: bool = False,
) -> tuple[Tensor, Tensor]:
    """(int32 [rows, sparse_count], F32 values [rows, sparse_count] or [0]).

    query [rows, H, D] and key [flat rows, D] of one dtype, F32, bf16 or F16; key rows may lie
    apart; weights [rows, H].

    Raises:
        ArgumentError: F64, which only backend 'reference' computes.
        BackendUnavailable: the kernels cannot be compiled here.
        KernelError: too little memory.
    """
    dtype = _number("query", query)
    query, weights = query.contiguous(), weights.contiguous()
    values = (
        torch.empty((len(query), sparse_count), dtype=torch.float32) if return_value else _NOTHING
    )
    where, indices = _where(query, requests, keys, sparse_count, causal, sorted)
    code = _entry("g5_lightning_indexer", _FLOAT)(
        dtype,
        query.data_ptr(),
        key.data_ptr(),
        key.stride(0),
        _number("weights", weights),
        weights.data_ptr(),
        *where,
        address(values if return_value else None),
    )
    if code:
        check(code, "lightning_indexer")
    return indices, values


def forward_quant(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_scale: Tensor,
    key_scale: Tensor,
    requests: Queries,
    keys: Keys,
    sparse_count: int,
    *,
    causal: bool,
    sorted: bool = False,
) -> Tensor:
    """int32 [rows, sparse_count] of int8 query [rows, H, D] and key [flat rows, D], D < 1024.

    weights and query_scale [rows, H], key_scale [flat rows], each F32, bf16 or F16. The dots are
    exact; score = (sum_h weights query_scale relu(dot)) key_scale in F32.

    Raises:
        As :func:`forward`.
    """
    query, weights = query.contiguous(), weights.contiguous()
    query_scale = query_scale.contiguous()
    where, indices = _where(query, requests, keys, sparse_count, causal, sorted)
    code = _entry("g5_lightning_indexer_quant", _QUANT)(
        query.data_ptr(),
        key.data_ptr(),
        key.stride(0),
        _number("weights", weights),
        weights.data_ptr(),
        _number("query_dequant_scale", query_scale),
        query_scale.data_ptr(),
        _number("key_dequant_scale", key_scale),
        key_scale.data_ptr(),
        key_scale.stride(0),
        *where,
    )
    if code:
        check(code, "lightning_indexer_quant")
    return indices


def _where(
    query: Tensor, requests: Queries, keys: Keys, sparse_count: int, causal: bool, sorted: bool
) -> tuple[tuple[object, ...], Tensor]:
    """The arguments that both entry points share, and the tensor of the result."""
    rows, heads, dim = query.shape
    n = len(keys.lengths)
    table = keys.block_table
    # With a block table the third number, the first key row, is not read.
    each = zip(
        requests.starts, requests.lengths, keys.starts or keys.lengths, keys.lengths, strict=True
    )
    spans = (ctypes.c_int64 * (4 * n))(*chain.from_iterable(each))
    indices = torch.empty((rows, sparse_count), dtype=torch.int32)
    stride = 0 if table is None else table.stride(0)
    sizes = rows, heads, dim, n, spans, address(table), stride, keys.block_size
    return (*sizes, sparse_count, causal, sorted, indices.data_ptr()), indices


def _number(name: str, tensor: Tensor) -> int:
    number = DTYPES.get(tensor.dtype)
    if number is None:
        raise ArgumentError(
            f"backend 'cpu' needs {name} in float32, bfloat16 or float16, not "
            f"{str(tensor.dtype).removeprefix('torch.')}",
            "convert it, or choose backend 'reference'",
        )
    return number


def _entry(name: str, types: tuple[type, ...]) -> Callable[..., int]:
    entry = getattr(library("lightning_indexer"), name)
    if entry.argtypes is None:
        entry.argtypes = types
    return cast(Callable[..., int], entry)
