"""Lightning indexer: the AscendC kernels of ascendc/ on an NPU.

Limits and arithmetic as of ``emulated``, which runs the same source. The library is built by
``glm5-ascend ops build``; has not run on an NPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.ascendc import library
from glm5_ascend.ops.ascendc.limits import Limit, enforce
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.lightning_indexer.call import Call

_NAME = "the AscendC kernel of lightning_indexer"
_NUMBERS = (torch.float32, torch.float16, torch.bfloat16)
# enum LengthForm of ascendc/tiling.h.
_PER_REQUEST, _PREFIX_SUMS = 1, 2

LIMITS: tuple[Limit[Call], ...] = (
    Limit(
        "query and key in float16, bfloat16 or int8",
        lambda c: c.query.dtype in (torch.float16, torch.bfloat16, torch.int8),
    ),
    Limit(
        "16, 32, 48 or 64 heads of 128 dims",
        lambda c: c.query.shape[1] in (16, 32, 48, 64) and c.query.shape[2] == 128,
    ),
    Limit("a sparse_count of at most 2048", lambda c: c.count <= 2048),
    Limit("at most 2**24 keys per request", lambda c: max(c.keys.lengths, default=0) <= 1 << 24),
    Limit(
        "weights and scales in float32, float16 or bfloat16",
        lambda c: all(t.dtype in _NUMBERS for t in (c.weights, *(c.scales or ()))),
    ),
    Limit("a key without gaps between its rows", lambda c: c.key.is_contiguous()),
    Limit("return_value=False", lambda c: not c.return_value),
)


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
    """(int32 [rows, sparse_count], F32 [0]); arguments as of ``reference.forward``.

    Raises:
        Declined: outside of LIMITS.
        BackendUnavailable: the kernels are not built or cannot be loaded.
    """
    call = Call(
        query, key, weights, requests, keys, sparse_count, causal, sorted, return_value
    )  # fmt: skip
    return _select(call), query.new_empty(0, dtype=torch.float32)


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
    """int32 [rows, sparse_count]; arguments as of ``reference.forward_quant``.

    Raises:
        Declined, BackendUnavailable: as :func:`forward`.
    """
    scales = query_scale, key_scale
    call = Call(query, key, weights, requests, keys, sparse_count, causal, sorted, scales=scales)
    return _select(call)


def _select(call: Call) -> Tensor:
    enforce(_NAME, LIMITS, call)
    operators: Any = library.load()
    if not call.keys.lengths:
        return call.query.new_full((call.requests.rows, call.count), -1, dtype=torch.int32)
    table, device = call.keys.block_table, call.query.device
    query_form, query_tokens, query_lengths = lengths(call.requests.starts, call.requests.lengths)
    starts = [] if table is not None else call.keys.starts
    key_form, key_tokens, key_lengths = lengths(starts, call.keys.lengths)
    query_scale, key_scale = call.scales or (None, None)
    indices: Tensor = operators.lightning_indexer(
        call.query.contiguous(),
        call.key,
        call.weights.contiguous(),
        None if query_scale is None else query_scale.contiguous(),
        None if key_scale is None else key_scale.contiguous(),
        query_lengths.to(device),
        key_lengths.to(device),
        None if table is None else table.contiguous(),
        query_form=query_form,
        query_tokens=query_tokens,
        key_form=key_form,
        key_tokens=key_tokens,
        page=call.keys.block_size if table is not None else 0,
        count=call.count,
        causal=call.causal,
        by_score=call.sorted,
    )
    return indices


def lengths(starts: list[int], each: list[int]) -> tuple[int, int, Tensor]:
    """(form, distance of requests, int32 tensor) of requests that start at ``starts``, if any."""
    ends = torch.tensor(each, dtype=torch.int32).cumsum(0).int()
    if starts and starts == [0, *ends[:-1].tolist()]:
        return _PREFIX_SUMS, 0, ends
    distance = starts[1] - starts[0] if len(starts) > 1 else 0
    return _PER_REQUEST, distance, torch.tensor(each, dtype=torch.int32)
