"""Sparse flash attention: the AscendC kernels of ascendc/ on an NPU.

Arithmetic as of ``emulated``, which runs the same source; where rows are few, a row's positions are
split over cores, so its bits may depend on the number of rows. The library is built by
``glm5-ascend ops build``; has not run on an NPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from glm5_ascend.ops.ascendc import library
from glm5_ascend.ops.ascendc.limits import Limit, enforce
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.paged_cache.rows import LATENT, ROTATED

_NAME = "the AscendC kernel of sparse_flash_attention"


class Parts(NamedTuple):
    """Query and key of one call, a tensor per part, and value."""

    query: list[Tensor]
    key: list[Tensor]
    value: Tensor


_COMMON: tuple[Limit[Parts], ...] = (
    Limit("1 to 128 heads", lambda p: 1 <= p.query[0].shape[1] <= 128),
    Limit("key rows without gaps between them", lambda p: all(k.is_contiguous() for k in p.key)),
)
LIMITS: tuple[Limit[Parts], ...] = (
    Limit(
        "query and key in float16 or bfloat16",
        lambda p: p.query[0].dtype in (torch.float16, torch.bfloat16),
    ),
    Limit(
        f"a latent of {LATENT} and a rotated part of {ROTATED} dims, or none",
        lambda p: [q.shape[-1] for q in p.query] in ([LATENT], [LATENT, ROTATED]),
    ),
    Limit("the latent of key as value", lambda p: p.value is p.key[0]),
    *_COMMON,
)
PACKED_LIMITS: tuple[Limit[Parts], ...] = (
    Limit("a query in bfloat16 over packed rows", lambda p: p.query[0].dtype == torch.bfloat16),
    *_COMMON,
)


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
    """(out [rows, H, 512], max, sum F32 [rows, H]); arguments as of ``reference.forward``.

    Raises:
        Declined: outside of LIMITS.
        BackendUnavailable: the kernels are not built or cannot be loaded.
    """
    parts = Parts(query, key, value)
    enforce(_NAME, LIMITS, parts)
    return _attend(parts, indices, scale, block, requests, keys, causal)


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
    """out [rows, H, 512]; arguments as of ``reference.forward_kv_quant``.

    Raises:
        Declined: outside of PACKED_LIMITS.
        BackendUnavailable: as :func:`forward`.
    """
    parts = Parts([query], [packed], packed)
    enforce(_NAME, PACKED_LIMITS, parts)
    return _attend(parts, indices, scale, block, requests, keys, causal)[0]


def _attend(
    parts: Parts,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    operators: Any = library.load()
    table, device = keys.block_table, indices.device
    query = [q.contiguous() for q in parts.query]
    out, peak, total = operators.sparse_flash_attention(
        query[0],
        query[1] if len(query) > 1 else None,
        parts.key[0],
        parts.key[1] if len(query) > 1 else None,
        indices.contiguous(),
        spans(requests, keys).to(device),
        None if table is None else table.contiguous(),
        scale=scale,
        sparse_block=block,
        page=keys.block_size if table is not None else 0,
        causal=causal,
    )
    return out, peak, total


def spans(requests: Queries, keys: Keys) -> Tensor:
    """int32 [B, 4]: first query row, query rows, first key row (0 with pages), keys."""
    first = keys.starts or [0] * len(keys.lengths)
    columns = (requests.starts, requests.lengths, first, keys.lengths)
    return torch.tensor(list(zip(*columns, strict=True)), dtype=torch.int32).view(-1, 4)
