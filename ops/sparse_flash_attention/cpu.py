"""Sparse flash attention in C++ (csrc/): tiles of keys, softmax with a running maximum.

A row's bits depend on its own request only: neither on the other rows of the batch, nor on where
its keys lie in the cache, nor on the number of threads. They differ between instruction sets.

Arithmetic. BF16 with AVX-512: exact products of BF16 numbers and F32 sums; weights are rounded to
BF16 before they meet the values, as on the NPU, and subnormal BF16 numbers count as zero. All else
is F32 throughout, BF16 and F16 being widened exactly. Weights below exp(-87.33) count as zero.
A NaN or an infinity in a key or value of a row's request gives what the formula gives.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.native import DTYPES, address, check
from glm5_ascend.ops.paged_cache.rows import LATENT, ROTATED
from glm5_ascend.ops.sparse_flash_attention.cpu_plan import CALL, KERNELS, plan

__all__ = ["KERNELS", "attend", "forward", "forward_kv_quant", "plan"]

_OUTSIDE = 3  # an error of csrc/call.h beside those of g5.h
_NOTHING = torch.empty(0, dtype=torch.float32)

_Place = tuple[int, int, int, int]  # ``struct Rows``


def forward(
    query: list[Tensor],
    key: list[Tensor],
    value: Tensor,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out [rows, H, Lv], max F32 [rows, H], sum F32 [rows, H]).

    Args:
        query: latent and, if there is one, rotated part: [rows, H, d] each, F32, BF16 or F16.
        key: the same parts, [flat rows, d]; a row may be wider than d.
        value: [flat rows, Lv]; may be key[0] or a part of it.
        indices: int32 [rows, K] positions within the row's request; -1 and positions that the row
            does not see are skipped.
        scale: factor of the scores.
        block: entry i of the indices names positions i * block up to (i + 1) * block.
        requests: whose the query rows are.
        keys: where the keys of a request lie.
        causal: query i of n sees the keys up to k_len - n + i, else all.

    Raises:
        ArgumentError: a dtype that this backend has no kernel for, or a row of the block table that
            lies outside the cache.
        BackendUnavailable: the kernels cannot be compiled here.
    """
    shape = query[0].shape[:2]
    peak = torch.empty(shape, dtype=torch.float32)
    total = torch.empty(shape, dtype=torch.float32)
    out = _float(query, key, value, indices, scale, block, requests, keys, causal, peak, total)
    return out, peak, total


def attend(
    query: list[Tensor],
    key: list[Tensor],
    value: Tensor,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`forward` with empty maxima and sums."""
    out = _float(query, key, value, indices, scale, block, requests, keys, causal, None, None)
    return out, _NOTHING, _NOTHING


def _float(
    query: list[Tensor],
    key: list[Tensor],
    value: Tensor,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    causal: bool,
    peak: Tensor | None,
    total: Tensor | None,
) -> Tensor:
    _check_dtypes(query[0], *query, *key, value)
    query = [_dense(q) for q in query]
    places = [_place(k) for k in key]
    return _run(
        query[0], [_place(q) for q in query], places,
        places[0] if value is key[0] else _place(value), -1,
        key[0].shape[0], indices, scale, block, requests, keys, causal, peak, total,
    )  # fmt: skip


def forward_kv_quant(
    query: Tensor,
    packed: Tensor,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    *,
    causal: bool,
) -> Tensor:
    """out [rows, H, 512] over packed rows, which are dequantised to BF16 first.

    Args:
        query: [rows, H, 576], latent first, F32, BF16 or F16.
        packed: int8 [flat rows, 656] of ops/paged_cache; a row may be wider.
        indices, scale, block, requests, keys, causal: as in :func:`forward`.

    Raises:
        ArgumentError, BackendUnavailable: as :func:`forward`.
    """
    _check_dtypes(query)
    query = _dense(query)
    data, row, _, _ = _place(packed)
    key = [(data, row, 0, query.shape[-1])]
    return _run(
        query, [_place(query)], key, (data, row, 0, LATENT), ROTATED, packed.shape[0], indices,
        scale, block, requests, keys, causal, None, None,
    )  # fmt: skip


def _run(
    query: Tensor,
    queries: list[_Place],
    key: list[_Place],
    value: _Place,
    packed_rope: int,
    cache_rows: int,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    causal: bool,
    peak: Tensor | None,
    total: Tensor | None,
) -> Tensor:
    rows, heads = query.shape[:2]
    out = query.new_empty(rows, heads, value[3])
    n, table = len(keys.lengths), keys.block_table
    # With a block table `key_start` is not read.
    starts = keys.starts or keys.lengths
    spans = (ctypes.c_int64 * (4 * n))(*requests.starts, *requests.lengths, *keys.lengths, *starts)
    first = ctypes.addressof(spans)
    call = CALL.pack(
        *queries[0], *queries[-1], *key[0], *key[-1], *value, len(queries), DTYPES[query.dtype],
        packed_rope, rows, heads, cache_rows, indices.data_ptr(), indices.stride(0),
        indices.shape[1], block, causal, n, first, first + 8 * n, first + 16 * n, first + 24 * n,
        address(table), 0 if table is None else table.stride(0), keys.block_size, scale,
        out.data_ptr(), address(peak), address(total),
    )  # fmt: skip
    work = rows * heads * indices.shape[1] * block * (value[3] + query.shape[-1])
    code = KERNELS.get("g5_sparse_flash_attention", work)(call)
    if code == _OUTSIDE:
        raise ArgumentError(
            f"a key that sparse_indices name must be one of the cache's {cache_rows} rows; the "
            "block table or the key lengths lead outside"
        )
    if code:
        check(code, "sparse_flash_attention")
    return out


def _place(tensor: Tensor) -> _Place:
    """First number, bytes from row to row and from head to head, numbers in a row."""
    size = tensor.element_size()
    head = tensor.stride(1) * size if tensor.ndim == 3 else 0
    return tensor.data_ptr(), tensor.stride(0) * size, head, tensor.shape[-1]


def _dense(query: Tensor) -> Tensor:
    return query if query.stride(-1) == 1 else query.contiguous()


def _check_dtypes(first: Tensor, *others: Tensor) -> None:
    if first.dtype not in DTYPES:
        name = str(first.dtype).removeprefix("torch.")
        raise ArgumentError(
            f"backend 'cpu' computes attention in float32, bfloat16 or float16, not in {name}",
            "choose backend 'reference' (--op-backend reference)",
        )
    for tensor in others:
        if tensor.dtype != first.dtype:
            raise ArgumentError(
                f"query, key and value must have one dtype, not {first.dtype} and {tensor.dtype}"
            )
