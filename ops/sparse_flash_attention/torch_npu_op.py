"""Sparse attention by torch_npu's npu_sparse_flash_attention and its twin over packed int8 rows.

What they take is in LIMITS and QUANT_LIMITS, from their documentation in torch_npu 2.13.0 and
README.md. P is rounded to query's dtype there. Written from the documentation; has not run on an
NPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.ascendc import vendor
from glm5_ascend.ops.ascendc.layouts import Form, form, spread_rows
from glm5_ascend.ops.ascendc.limits import Limit, broken, enforce
from glm5_ascend.ops.layout import Keys, Queries, visible_keys
from glm5_ascend.ops.paged_cache.rows import LATENT, PACKED, ROTATED, TILE

_HEADS = (*range(1, 65), 128)
_ABSORBED = 2  # attention_mode: one latent is key and value
_PER_TILE = 2  # key_quant_mode and value_quant_mode


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one call as a backend gets them; ``lse``: maxima and sums are wanted."""

    query: list[Tensor]
    key: list[Tensor]
    value: Tensor
    indices: Tensor
    scale: float
    block: int
    requests: Queries
    keys: Keys
    causal: bool
    lse: bool = False

    def form(self) -> Form | None:
        """The layouts, if torch_npu has them."""
        return form(self.requests, self.keys, len(self.key[0]))


def _widths(call: Call) -> tuple[int, ...]:
    return tuple(part.shape[-1] for part in call.query)


def _sparse_block(call: Call) -> bool:
    power = call.block & (call.block - 1) == 0 and call.block <= 128
    return power and call.keys.block_size % call.block == 0


_COMMON: tuple[Limit[Call], ...] = (
    Limit("1 to 64 or 128 heads", lambda c: c.query[0].shape[1] in _HEADS),
    Limit(
        "key rows without gaps between them", lambda c: all(part.is_contiguous() for part in c.key)
    ),
    Limit("a sparse_block_size that is a power of two up to 128 and divides a page", _sparse_block),
)
LIMITS: tuple[Limit[Call], ...] = (
    Limit(
        "query and key in float16 or bfloat16",
        lambda c: c.query[0].dtype in (torch.float16, torch.bfloat16),
    ),
    Limit(f"a latent of {LATENT} and a rotated part of {ROTATED} dims, each a tensor",
          lambda c: _widths(c) == (LATENT, ROTATED)),
    Limit("the latent of key as value", lambda c: c.value is c.key[0]),
    *_COMMON,
    Limit("query and key in one layout, or a paged key", lambda c: c.form() is not None),
    Limit("return_softmax_lse=False outside of training", lambda c: not c.lse),
)  # fmt: skip
QUANT_LIMITS: tuple[Limit[Call], ...] = (
    Limit("a query in bfloat16", lambda c: c.query[0].dtype == torch.bfloat16),
    *_COMMON,
    Limit("a paged key", lambda c: c.keys.block_table is not None),
)
NAMES = {
    "forward": "npu_sparse_flash_attention",
    "attend": "npu_sparse_flash_attention",
    "forward_kv_quant": "npu_kv_quant_sparse_flash_attention",
}


def refuses(function: str, *arguments: Any, **options: Any) -> str | None:
    """Why the vendor's operator does not take a call of ``function``, or None."""
    make, limits = _OF[function]
    return broken(NAMES[function], limits, make(*arguments, **options))


def forward(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Declines: maxima and sums of the softmax are for training there.

    Raises:
        Declined: always.
    """
    enforce(NAMES["forward"], LIMITS, _lse_call(*arguments, **options))
    raise AssertionError("LIMITS refuse return_softmax_lse")


def attend(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(out [rows, H, 512], two tensors F32 [0]); arguments as of ``reference.forward``.

    Raises:
        Declined: outside of LIMITS.
        BackendUnavailable: torch_npu cannot be imported here.
    """
    call = _call(*arguments, **options)
    enforce(NAMES["attend"], LIMITS, call)
    operator = vendor.operators().npu_sparse_flash_attention
    none = call.query[0].new_empty(0, dtype=torch.float32)
    where = call.form()
    if where is None or not where.rows or not call.indices.shape[1]:
        return _nothing(call), none, none
    latent = where.keys(call.key[0])
    out, _, _ = operator(
        where.queries(call.query[0]),
        latent,
        latent,
        _indices(call, where),
        call.scale,
        query_rope=where.queries(call.query[1]),
        key_rope=where.keys(call.key[1]),
        **_options(call, where),
        return_softmax_lse=False,
    )
    return _ours(call, out), none, none


def forward_kv_quant(*arguments: Any, **options: Any) -> Tensor:
    """out [rows, H, 512]; arguments as of ``reference.forward_kv_quant``.

    Raises:
        Declined: outside of QUANT_LIMITS.
        BackendUnavailable: torch_npu cannot be imported here.
    """
    call = _quant_call(*arguments, **options)
    enforce(NAMES["forward_kv_quant"], QUANT_LIMITS, call)
    operator = vendor.operators().npu_kv_quant_sparse_flash_attention
    where = call.form()
    if where is None or not where.rows or not call.indices.shape[1]:
        return _nothing(call)
    packed = where.keys(call.key[0])
    out = operator(
        where.queries(call.query[0]),
        packed,
        packed,
        _indices(call, where),
        call.scale,
        key_quant_mode=_PER_TILE,
        value_quant_mode=_PER_TILE,
        **_options(call, where),
        quant_scale_repo_mode=1,
        tile_size=TILE,
        rope_head_dim=ROTATED,
    )
    return _ours(call, out)


def _call(
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
) -> Call:
    return Call(query, key, value, indices, scale, block, requests, keys, causal)


def _lse_call(*arguments: Any, **options: Any) -> Call:
    call = _call(*arguments, **options)
    return Call(**{name: getattr(call, name) for name in Call.__slots__} | {"lse": True})


def _quant_call(
    query: Tensor,
    packed: Tensor,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    *,
    causal: bool,
) -> Call:
    assert packed.shape[-1] == PACKED
    return Call([query], [packed], packed, indices, scale, block, requests, keys, causal)


def _options(call: Call, where: Form) -> dict[str, object]:
    return {
        "block_table": where.block_table,
        "actual_seq_lengths_query": where.lengths_query,
        "actual_seq_lengths_kv": where.lengths_key,
        "sparse_block_size": call.block,
        "layout_query": where.query,
        "layout_kv": where.key,
        "sparse_mode": 3 if call.causal else 0,
        "attention_mode": _ABSORBED,
    }


def _indices(call: Call, where: Form) -> Tensor:
    """Indices [.., 1, K] with what is -1 or not visible behind the others.

    The operator stops at the first -1 and uses no more slots than the row sees keys.
    """
    _, visible = visible_keys(call.requests, call.keys, causal=call.causal)
    unused = (call.indices < 0) | (call.indices * call.block >= visible[:, None])
    indices = call.indices.masked_fill(unused, -1)
    if bool((unused[:, :-1] & ~unused[:, 1:]).any()):
        order = unused.to(torch.int8).argsort(dim=-1, stable=True)
        indices = indices.gather(-1, order)
    return where.queries(indices[:, None])


def _nothing(call: Call) -> Tensor:
    return call.query[0].new_zeros((*call.query[0].shape[:2], LATENT))


def _ours(call: Call, out: Tensor) -> Tensor:
    """[rows, H, 512], zero for rows of no request."""
    return spread_rows(out.reshape(-1, *out.shape[-2:]), call.requests, 0)


_OF: dict[str, tuple[Callable[..., Call], tuple[Limit[Call], ...]]] = {
    "forward": (_lse_call, LIMITS),
    "attend": (_call, LIMITS),
    "forward_kv_quant": (_quant_call, QUANT_LIMITS),
}
