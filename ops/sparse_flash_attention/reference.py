"""Sparse flash attention in plain torch: gather the chosen rows, then one softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.layout import Keys, Queries

# Gathered rows are held for one chunk of queries only.
_CHUNK_BYTES = 64 << 20


def forward(
    query: list[Tensor],
    key: list[Tensor],
    value: Tensor,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    spans: Keys,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out [rows, H, Lv], max [rows, H], sum [rows, H]).

    ``query`` and ``key`` hold the latent and, if there is one, the rotated part: [rows, H, d] and
    [flat rows, d]. The scores of the parts are added.
    """
    dtype = torch.float64 if query[0].dtype == torch.float64 else torch.float32
    rows, heads = query[0].shape[:2]
    out = query[0].new_zeros(rows, heads, value.shape[-1])
    peak = torch.full((rows, heads), -torch.inf, dtype=dtype)
    total = torch.zeros(rows, heads, dtype=dtype)
    request, offset = requests.request_of_row()
    position = indices.long()
    if block > 1:
        inside = torch.arange(block)
        position = torch.where(position[..., None] < 0, -1, position[..., None] * block + inside)
        position = position.flatten(1)
    visible = _visible(request, offset, requests, spans, causal)
    valid = (position >= 0) & (position < visible[:, None])
    flat = spans.rows(request.clamp(min=0)[:, None], torch.where(valid, position, 0))
    flat = torch.where(valid, flat, 0)
    width = sum(k.shape[-1] for k in key) + value.shape[-1]
    step = max(1, _CHUNK_BYTES // (4 * max(1, position.shape[1]) * width))
    for i in range(0, rows, step):
        part = slice(i, i + step)
        o, p, t = _attend(
            [q[part].to(dtype) for q in query], key, value, flat[part], valid[part], scale
        )
        out[part], peak[part], total[part] = o, p, t
    return out, peak, total


def _visible(
    request: Tensor, offset: Tensor, requests: Queries, spans: Keys, causal: bool
) -> Tensor:
    """Number of keys each row may see, int64 [rows]; 0 for rows of no request."""
    if not spans.lengths:
        return torch.zeros_like(request)
    k_len = torch.tensor(spans.lengths)[request]
    if causal:
        k_len = (k_len - torch.tensor(requests.lengths)[request] + offset + 1).clamp_(min=0)
    return k_len.masked_fill_(request < 0, 0)


def _attend(
    query: list[Tensor], key: list[Tensor], value: Tensor, flat: Tensor, valid: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = query[0].dtype
    unused = None if bool(valid.all()) else ~valid
    gathered = [_gather(k, flat, unused, dtype) for k in key]
    v = gathered[0] if value is key[0] else _gather(value, flat, unused, dtype)
    score = query[0] @ gathered[0].mT
    for q, k in zip(query[1:], gathered[1:], strict=True):
        score += q @ k.mT
    score *= scale
    if unused is not None:
        score.masked_fill_(unused[:, None], -torch.inf)
    peak = score.amax(-1) if score.shape[-1] else score.new_full(score.shape[:-1], -torch.inf)
    weight = (score - peak.masked_fill(peak == -torch.inf, 0)[..., None]).exp_()
    total = weight.sum(-1)
    out = (weight @ v) / total.masked_fill(total == 0, 1)[..., None]
    return out, peak, total


def _gather(rows: Tensor, flat: Tensor, unused: Tensor | None, dtype: torch.dtype) -> Tensor:
    picked = rows[flat].to(dtype)
    if unused is not None:
        picked[unused] = 0  # unwritten cache rows may hold NaN
    return picked
