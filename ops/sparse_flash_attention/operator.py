"""Schemas, checks, kernels and fake kernels of the two attention operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops import checks, dispatch, layout
from glm5_ascend.ops.checks import UNLIMITED
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.layout import Keys, Layout, Queries
from glm5_ascend.ops.paged_cache.rows import LATENT, PACKED, ROTATED, TILE
from glm5_ascend.ops.plans import Plans, form_of
from glm5_ascend.ops.registry import define
from glm5_ascend.ops.tracing import passes_errors

_WHERE = (
    "Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_kv=None"
)
_HOW = (
    'int sparse_block_size=1, str layout_query="BSND", str layout_kv="BSND", int sparse_mode=3, '
    "int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807, "
    "int attention_mode=0"
)
# torch_npu's signatures; `backend` is ours.
FLOAT_SCHEMA = (
    "sparse_flash_attention(Tensor query, Tensor key, Tensor? value, Tensor sparse_indices, "
    f"float scale_value, *, {_WHERE}, Tensor? query_rope=None, Tensor? key_rope=None, {_HOW}, "
    'bool return_softmax_lse=False, Tensor? sinks=None, str backend="auto") '
    "-> (Tensor, Tensor, Tensor)"
)
QUANT_SCHEMA = (
    "kv_quant_sparse_flash_attention(Tensor query, Tensor key, Tensor value, "
    "Tensor sparse_indices, float scale_value, int key_quant_mode, int value_quant_mode, *, "
    f"Tensor? key_dequant_scale=None, Tensor? value_dequant_scale=None, {_WHERE}, {_HOW}, "
    "int quant_scale_repo_mode=1, int tile_size=128, int rope_head_dim=64, int? key_dtype=None, "
    'int? value_dtype=None, str backend="auto") -> Tensor'
)
PLANS = Plans("plan")
_F32 = torch.float32
_PER_TILE = 2  # torch_npu's key_quant_mode and value_quant_mode


def _check(
    query: Tensor,
    key: Tensor,
    sparse_indices: Tensor,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    attention_mode: int = 0,
) -> Layout:
    """Check what both operators have; the layout arguments in one tuple."""
    where = Layout(
        layout_query,
        layout_kv,
        actual_seq_lengths_query,
        actual_seq_lengths_kv,
        block_table,
        "layout_kv",
        "actual_seq_lengths_kv",
    )
    layout.check(where, query, key)
    checks.one_of("attention_mode", attention_mode, (2,))
    checks.one_of("sparse_mode", sparse_mode, (0, 3))
    checks.unlimited(pre_tokens, next_tokens)
    if sparse_block_size < 1:
        raise ArgumentError(f"sparse_block_size must be positive, not {sparse_block_size}")
    checks.dtype("sparse_indices", sparse_indices, (torch.int32,))
    checks.dense("sparse_indices", sparse_indices)
    checks.device("sparse_indices", sparse_indices, "query", query.device)
    if sparse_indices.shape[:-1] != (*query.shape[:-2], 1):
        raise ArgumentError(
            f"sparse_indices must have shape {[*query.shape[:-2], 1, 'K']}, not "
            f"{list(sparse_indices.shape)}"
        )
    return where


def _check_indices(indices: Tensor, block: int, requests: Queries, keys: Keys) -> None:
    """Check indices [rows, K] of rows that belong to a request: -1 or a position it has."""
    if not indices.numel():
        return
    low, high = checks.extremes(indices)
    if low >= -1 and high * block < min(keys.lengths, default=0):
        return
    lows, highs = (x.tolist() for x in torch.aminmax(indices, dim=1))
    spans = zip(requests.starts, requests.lengths, keys.lengths, strict=True)
    for b, (start, count, length) in enumerate(spans):
        if not count:
            continue
        low, high = min(lows[start : start + count]), max(highs[start : start + count])
        if low < -1 or high * block >= max(length, 1 - block):
            index = low if low < -1 else high
            raise ArgumentError(
                f"sparse_indices must be -1 or positions among the {length} keys of their "
                f"request, not {index} (request {b}, blocks of {block})"
            )


def _check_float(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    query_rope: Tensor | None,
    key_rope: Tensor | None,
    sinks: Tensor | None,
) -> None:
    checks.dtype("query", query, checks.FLOATS)
    checks.dtype("key", key, (query.dtype,))
    if key.shape[-2:] != (1, query.shape[-1]):
        raise ArgumentError(
            f"key must have one head of {query.shape[-1]} dims like query, not shape "
            f"{list(key.shape)}"
        )
    if sinks is not None:
        raise ArgumentError("sinks must be None: GLM-5 has none, and no backend adds them")
    if value is not None:
        _check_part("value", value, query, (*key.shape[:-1], value.shape[-1]))
        checks.rows("value", value)
    if query_rope is None and key_rope is None:
        return
    if query_rope is None or key_rope is None:
        raise ArgumentError("query_rope and key_rope go together; one of them is None")
    width = query_rope.shape[-1]
    _check_part("query_rope", query_rope, query, (*query.shape[:-1], width))
    checks.dense("query_rope", query_rope)
    _check_part("key_rope", key_rope, query, (*key.shape[:-1], width))
    checks.rows("key_rope", key_rope)


def _check_part(name: str, part: Tensor, query: Tensor, shape: tuple[int, ...]) -> None:
    checks.dtype(name, part, (query.dtype,))
    checks.shape(name, part, shape)
    checks.device(name, part, "query", query.device)


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return (
        a is b
        or (a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride())
    )  # fmt: skip


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.int8), b.view(torch.int8))


def _float_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    backend: str = "auto",
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    form = None
    shared = value is None or value is key
    if query.is_cpu and shared and sinks is None and not return_softmax_lse:
        form = form_of(
            backend, query, key, sparse_indices, scale_value, query_rope, key_rope, *options,
            *options.values(),
        )  # fmt: skip
        plan = PLANS.get(form)
        if plan is not None:
            found = plan(query, key, sparse_indices, query_rope, key_rope, **options)
            if found is not None:
                return found, found.new_empty(0, dtype=_F32), found.new_empty(0, dtype=_F32)
    where = _check(query, key, sparse_indices, **options)
    _check_float(query, key, value, query_rope, key_rope, sinks)
    requests, keys = layout.spans(where, query, key)
    indices, block = sparse_indices.flatten(0, -2), options.get("sparse_block_size", 1)
    _check_indices(indices, block, requests, keys)
    q = [query.flatten(0, -3)]
    k = [key.flatten(0, -2)]
    v = k[0] if value is None or _same_memory(value, key) else value.flatten(0, -2)
    if query_rope is not None and key_rope is not None:
        q.append(query_rope.flatten(0, -3))
        k.append(key_rope.flatten(0, -2))
    module = dispatch.load("sparse_flash_attention", backend, query)
    # `attend`, where a backend has it, is `forward` without maxima and sums.
    run = module.forward if return_softmax_lse else getattr(module, "attend", module.forward)
    out, peak, total = run(
        q, k, v, indices, scale_value, block, requests, keys,
        causal=options.get("sparse_mode", 3) == 3,
    )  # fmt: skip
    out = out.view(*query.shape[:-1], v.shape[-1])
    PLANS.ask(
        form, module, query, key, sparse_indices, scale_value, query_rope, key_rope, **options
    )
    if not return_softmax_lse:
        return out, peak.new_empty(0), peak.new_empty(0)
    if where.query == "TND":
        return out, peak[None], total[None]
    return out, peak.view(query.shape[:-1])[:, None], total.view(query.shape[:-1])[:, None]


def _float_fake(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    backend: str = "auto",
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    where = _check(query, key, sparse_indices, **options)
    _check_float(query, key, value, query_rope, key_rope, sinks)
    out = query.new_empty((*query.shape[:-1], (key if value is None else value).shape[-1]))
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    shape: tuple[int, ...] = (0,)
    if return_softmax_lse and where.query == "TND":
        shape = (1, *query.shape[:-1])
    elif return_softmax_lse:
        shape = (query.shape[0], 1, *query.shape[1:-1])
    return out, query.new_empty(shape, dtype=dtype), query.new_empty(shape, dtype=dtype)


def _check_quant(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    key_dequant_scale: Tensor | None = None,
    value_dequant_scale: Tensor | None = None,
    quant_scale_repo_mode: int = 1,
    tile_size: int = TILE,
    rope_head_dim: int = ROTATED,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
    **common: Any,
) -> Layout:
    where = _check(query, key, sparse_indices, **common)
    checks.dtype("query", query, checks.FLOATS)
    checks.shape("query", query, (*query.shape[:-1], LATENT + ROTATED))
    for name, rows in (("key", key), ("value", value)):
        checks.dtype(name, rows, (torch.int8, torch.uint8, torch.float8_e4m3fn))
        checks.shape(name, rows, (*key.shape[:-2], 1, PACKED))
    checks.rows("value", value)
    checks.device("value", value, "query", query.device)
    checks.one_of("key_quant_mode", key_quant_mode, (_PER_TILE,))
    checks.one_of("value_quant_mode", value_quant_mode, (_PER_TILE,))
    checks.one_of("quant_scale_repo_mode", quant_scale_repo_mode, (1,))
    checks.one_of("tile_size", tile_size, (TILE,))
    checks.one_of("rope_head_dim", rope_head_dim, (ROTATED,))
    none = {
        "key_dequant_scale": key_dequant_scale,
        "value_dequant_scale": value_dequant_scale,
        "key_dtype": key_dtype,
        "value_dtype": value_dtype,
    }
    for name, given in none.items():
        if given is not None:
            raise ArgumentError(f"{name} must be None: the packed rows hold their scales")
    return where


def _quant_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    backend: str = "auto",
    **options: Any,
) -> Tensor:
    where = _check_quant(
        query, key, value, sparse_indices, key_quant_mode, value_quant_mode, **options
    )
    if not _same_memory(value, key) and not _same_bytes(value, key):
        raise ArgumentError("value must be key: a packed row holds one latent for both")
    requests, keys = layout.spans(where, query, key)
    indices, block = sparse_indices.flatten(0, -2), options.get("sparse_block_size", 1)
    _check_indices(indices, block, requests, keys)
    rows = key.flatten(0, -2)
    if rows.dtype == torch.float8_e4m3fn:
        backend = dispatch.with_fp8("kv_quant_sparse_flash_attention", backend, query)
    else:
        rows = rows.view(torch.int8)
    out: Tensor = dispatch.load(
        "kv_quant_sparse_flash_attention", backend, query
    ).forward_kv_quant(
        query.flatten(0, -3), rows, indices, scale_value, block, requests, keys,
        causal=options.get("sparse_mode", 3) == 3,
    )  # fmt: skip
    return out.view(*query.shape[:-1], LATENT)


def _quant_fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    backend: str = "auto",
    **options: Any,
) -> Tensor:
    _check_quant(query, key, value, sparse_indices, key_quant_mode, value_quant_mode, **options)
    return query.new_empty((*query.shape[:-1], LATENT))


FLOAT = define(FLOAT_SCHEMA, _float_kernel, passes_errors(_float_fake))
QUANT = define(QUANT_SCHEMA, _quant_kernel, passes_errors(_quant_fake))
