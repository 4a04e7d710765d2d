"""Schemas, checks, kernels and fake kernels of the two indexer operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops import checks, dispatch, layout
from glm5_ascend.ops.checks import UNLIMITED
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.layout import Layout
from glm5_ascend.ops.plans import Plans, form_of
from glm5_ascend.ops.registry import define
from glm5_ascend.ops.tracing import passes_errors

_COMMON = (
    "*, Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None, "
    'Tensor? block_table=None, str layout_query="BSND", str layout_key="BSND", '
    "int sparse_count=2048, int sparse_mode=3, int pre_tokens=9223372036854775807, "
    "int next_tokens=9223372036854775807"
)
# torch_npu's signatures; `sorted` and `backend` are ours.
FLOAT_SCHEMA = (
    f"lightning_indexer(Tensor query, Tensor key, Tensor weights, {_COMMON}, "
    'bool return_value=False, bool sorted=False, str backend="auto") -> (Tensor, Tensor)'
)
QUANT_SCHEMA = (
    "lightning_indexer_quant(Tensor query, Tensor key, Tensor weights, "
    "Tensor query_dequant_scale, Tensor key_dequant_scale, int query_quant_mode, "
    f"int key_quant_mode, {_COMMON}, int? query_dtype=None, int? key_dtype=None, "
    'bool sorted=False, str backend="auto") -> Tensor'
)
PLANS, QUANT_PLANS = Plans("plan"), Plans("plan_quant")
# The products of one head stay exact in F32 up to this many terms (ops/matmul.py).
_MOST_QUANT_DIMS = 1023


def _check(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
) -> Layout:
    """Check what both operators have; the layout arguments in one tuple."""
    where = Layout(
        layout_query, layout_key, actual_seq_lengths_query, actual_seq_lengths_key, block_table
    )
    layout.check(where, query, key)
    checks.shape("weights", weights, query.shape[:-1])
    checks.dense("weights", weights)
    checks.device("weights", weights, "query", query.device)
    if key.shape[-2:] != (1, query.shape[-1]):
        raise ArgumentError(
            f"key must have one head of {query.shape[-1]} dims like query, not shape "
            f"{list(key.shape)}"
        )
    checks.one_of("sparse_mode", sparse_mode, (0, 3))
    if sparse_count < 1:
        raise ArgumentError(f"sparse_count must be positive, not {sparse_count}")
    checks.unlimited(pre_tokens, next_tokens)
    return where


def _result_shape(query: Tensor, sparse_count: int) -> tuple[int, ...]:
    return (*query.shape[:-2], 1, sparse_count)


def _check_float(query: Tensor, key: Tensor, weights: Tensor) -> None:
    checks.dtype("query", query, checks.FLOATS)
    checks.dtype("key", key, (query.dtype,))
    checks.dtype("weights", weights, (query.dtype, torch.float32))


def _float_kernel(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    return_value: bool = False,
    sorted: bool = False,
    backend: str = "auto",
    **options: Any,
) -> tuple[Tensor, Tensor]:
    form = None
    if query.is_cpu and not return_value:
        form = form_of(backend, query, key, weights, sorted, *options, *options.values())
        plan = PLANS.get(form)
        if plan is not None and (found := plan(query, key, weights, **options)) is not None:
            return found, query.new_empty(0)
    where = _check(query, key, weights, **options)
    _check_float(query, key, weights)
    requests, keys = layout.spans(where, query, key)
    sparse_count = options.get("sparse_count", 2048)
    module = dispatch.load("lightning_indexer", backend, query)
    indices, values = module.forward(
        query.flatten(0, -3),
        key.flatten(0, -2),
        weights.flatten(0, -2),
        requests,
        keys,
        sparse_count,
        causal=options.get("sparse_mode", 3) == 3,
        sorted=sorted,
        return_value=return_value,
    )
    PLANS.ask(form, module, query, key, weights, sorted=sorted, **options)
    shape = _result_shape(query, sparse_count)
    if not return_value:
        return indices.view(shape), query.new_empty(0)
    return indices.view(shape), values.to(query.dtype).view(shape)


def _float_fake(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    return_value: bool = False,
    sorted: bool = False,
    backend: str = "auto",
    **options: Any,
) -> tuple[Tensor, Tensor]:
    _check(query, key, weights, **options)
    _check_float(query, key, weights)
    shape = _result_shape(query, options.get("sparse_count", 2048))
    values = query.new_empty(shape if return_value else (0,))
    return query.new_empty(shape, dtype=torch.int32), values


def _check_quant(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_scale: Tensor,
    key_scale: Tensor,
    modes: tuple[int, int],
    dtypes: tuple[int | None, int | None],
) -> None:
    checks.dtype("query", query, (torch.int8, torch.float8_e4m3fn))
    checks.dtype("key", key, (query.dtype,))
    checks.dtype("weights", weights, checks.FLOATS)
    for name, scale in (("query_dequant_scale", query_scale), ("key_dequant_scale", key_scale)):
        checks.dtype(name, scale, (torch.float16, torch.float32, torch.float64))
        checks.device(name, scale, "query", query.device)
    checks.shape("query_dequant_scale", query_scale, query.shape[:-1])
    checks.dense("query_dequant_scale", query_scale)
    checks.shape("key_dequant_scale", key_scale, key.shape[:-1])
    checks.rows("key_dequant_scale", key_scale)
    for name, mode in zip(("query_quant_mode", "key_quant_mode"), modes, strict=True):
        checks.one_of(name, mode, (0,))
    for name, hint in zip(("query_dtype", "key_dtype"), dtypes, strict=True):
        checks.one_of(name, hint, (None,))
    if query.shape[-1] > _MOST_QUANT_DIMS:
        raise ArgumentError(
            f"query must have at most {_MOST_QUANT_DIMS} dims per head, not {query.shape[-1]}"
        )


def _quant_kernel(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
    *,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
    sorted: bool = False,
    backend: str = "auto",
    **options: Any,
) -> Tensor:
    scales = query_dequant_scale, key_dequant_scale
    modes, dtypes = (query_quant_mode, key_quant_mode), (query_dtype, key_dtype)
    form = None
    if query.is_cpu and query.dtype == torch.int8:
        form = form_of(
            backend, query, key, weights, *scales, *modes, *dtypes, sorted, *options,
            *options.values(),
        )  # fmt: skip
        plan = QUANT_PLANS.get(form)
        if plan is not None:
            found: Tensor | None = plan(query, key, weights, *scales, **options)
            if found is not None:
                return found
    where = _check(query, key, weights, **options)
    _check_quant(query, key, weights, *scales, modes, dtypes)
    requests, keys = layout.spans(where, query, key)
    sparse_count = options.get("sparse_count", 2048)
    if query.dtype == torch.float8_e4m3fn:
        backend = dispatch.with_fp8("lightning_indexer_quant", backend, weights)
    module = dispatch.load("lightning_indexer_quant", backend, weights)
    indices: Tensor = module.forward_quant(
        query.flatten(0, -3),
        key.flatten(0, -2),
        weights.flatten(0, -2),
        query_dequant_scale.flatten(0, -2),
        key_dequant_scale.flatten(),
        requests,
        keys,
        sparse_count,
        causal=options.get("sparse_mode", 3) == 3,
        sorted=sorted,
    )
    QUANT_PLANS.ask(form, module, query, key, weights, *scales, sorted=sorted, **options)
    return indices.view(_result_shape(query, sparse_count))


def _quant_fake(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
    *,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
    sorted: bool = False,
    backend: str = "auto",
    **options: Any,
) -> Tensor:
    scales = query_dequant_scale, key_dequant_scale
    modes, dtypes = (query_quant_mode, key_quant_mode), (query_dtype, key_dtype)
    _check(query, key, weights, **options)
    _check_quant(query, key, weights, *scales, modes, dtypes)
    shape = _result_shape(query, options.get("sparse_count", 2048))
    return query.new_empty(shape, dtype=torch.int32)


FLOAT = define(FLOAT_SCHEMA, _float_kernel, passes_errors(_float_fake))
QUANT = define(QUANT_SCHEMA, _quant_kernel, passes_errors(_quant_fake))
