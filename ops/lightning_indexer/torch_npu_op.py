"""Lightning indexer by torch_npu's npu_lightning_indexer and npu_quant_lightning_indexer.

What they take is in LIMITS and QUANT_LIMITS, from their documentation in torch_npu 2.13.0 and
README.md. Among equal scores the choice is theirs. The int8 operator rounds scores to F16
(README.md). Written from the documentation; has not run on an NPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.ascendc import vendor
from glm5_ascend.ops.ascendc.layouts import Form, form, spread_rows
from glm5_ascend.ops.ascendc.limits import Limit, broken, enforce
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.lightning_indexer.call import Call

_LAST = torch.iinfo(torch.int32).max


def _form(call: Call) -> Form | None:
    """The layouts, if torch_npu has them."""
    return form(call.requests, call.keys, len(call.key))


_COMMON: tuple[Limit[Call], ...] = (
    Limit("heads of 128 dims", lambda c: c.query.shape[-1] == 128),
    Limit("1 to 64 heads", lambda c: 1 <= c.query.shape[1] <= 64),
    Limit("a key without gaps between its rows", lambda c: c.key.is_contiguous()),
    Limit("query and key in one layout, or a paged key", lambda c: _form(c) is not None),
)
LIMITS: tuple[Limit[Call], ...] = (
    Limit(
        "query and key in float16 or bfloat16",
        lambda c: c.query.dtype in (torch.float16, torch.bfloat16),
    ),
    *_COMMON,
    Limit(
        "a sparse_count of 1 to 2048, or 3072 to 8192 in steps of 1024",
        lambda c: c.count <= 2048 or (c.count <= 8192 and c.count % 1024 == 0),
    ),
    Limit("return_value=False outside of training", lambda c: not c.return_value),
)
QUANT_LIMITS: tuple[Limit[Call], ...] = (
    Limit("weights in float16", lambda c: c.weights.dtype == torch.float16),
    Limit(
        "scales in float16",
        lambda c: c.scales is not None and all(s.dtype == torch.float16 for s in c.scales),
    ),
    *_COMMON,
    Limit(
        "key scales without gaps", lambda c: c.scales is not None and c.scales[1].is_contiguous()
    ),
    Limit("a sparse_count of 1 to 2048", lambda c: c.count <= 2048),
    Limit("int8 on an Atlas A3 only", lambda c: vendor.device_name().startswith(vendor.A3)),
)
NAMES = {"forward": "npu_lightning_indexer", "forward_quant": "npu_quant_lightning_indexer"}


def refuses(function: str, *arguments: Any, **options: Any) -> str | None:
    """Why the vendor's operator does not take a call of ``function``, or None."""
    make, limits = _OF[function]
    return broken(NAMES[function], limits, make(*arguments, **options))


def forward(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """(int32 [rows, sparse_count], F32 [0]); arguments as of ``reference.forward``.

    Raises:
        Declined: outside of LIMITS.
        BackendUnavailable: torch_npu cannot be imported here.
    """
    call = _call(*arguments, **options)
    enforce(NAMES["forward"], LIMITS, call)
    operator = vendor.operators().npu_lightning_indexer
    none = call.query.new_empty(0, dtype=torch.float32)
    where = _form(call)
    if where is None or not where.rows:
        return _nothing(call), none
    indices, _ = operator(*_tensors(call, where), **_options(call, where), return_value=False)
    return _ours(call, indices), none


def forward_quant(*arguments: Any, **options: Any) -> Tensor:
    """int32 [rows, sparse_count]; arguments as of ``reference.forward_quant``.

    Raises:
        Declined: outside of QUANT_LIMITS.
        BackendUnavailable: torch_npu cannot be imported here.
    """
    call = _quant_call(*arguments, **options)
    enforce(NAMES["forward_quant"], QUANT_LIMITS, call)
    operator = vendor.operators().npu_quant_lightning_indexer
    where = _form(call)
    if where is None or not where.rows or call.scales is None:
        return _nothing(call)
    query_scale, key_scale = call.scales
    indices = operator(
        *_tensors(call, where),
        where.queries(query_scale),
        where.keys(key_scale),
        query_quant_mode=0,
        key_quant_mode=0,
        **_options(call, where),
    )
    return _ours(call, indices)


def _call(
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
) -> Call:
    return Call(
        query, key, weights, requests, keys, sparse_count, causal, sorted, return_value
    )  # fmt: skip


def _quant_call(
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
) -> Call:
    scales = query_scale, key_scale
    return Call(
        query, key, weights, requests, keys, sparse_count, causal, sorted, scales=scales
    )  # fmt: skip


def _tensors(call: Call, where: Form) -> tuple[Tensor, Tensor, Tensor]:
    return where.queries(call.query), where.keys(call.key), where.queries(call.weights)


def _options(call: Call, where: Form) -> dict[str, object]:
    return {
        "actual_seq_lengths_query": where.lengths_query,
        "actual_seq_lengths_key": where.lengths_key,
        "block_table": where.block_table,
        "layout_query": where.query,
        "layout_key": where.key,
        "sparse_count": call.count,
        "sparse_mode": 3 if call.causal else 0,
    }


def _nothing(call: Call) -> Tensor:
    return call.query.new_full((call.requests.rows, call.count), -1, dtype=torch.int32)


def _ours(call: Call, indices: Tensor) -> Tensor:
    """Positions in our order, by position unless ``sorted``, -1 last, for all rows."""
    rows = indices.reshape(-1, call.count)
    if not call.sorted:
        rows = rows.masked_fill(rows < 0, _LAST).sort(-1).values
        rows = rows.masked_fill(rows == _LAST, -1)
    return spread_rows(rows, call.requests, -1)


_OF: dict[str, tuple[Callable[..., Call], tuple[Limit[Call], ...]]] = {
    "forward": (_call, LIMITS),
    "forward_quant": (_quant_call, QUANT_LIMITS),
}
