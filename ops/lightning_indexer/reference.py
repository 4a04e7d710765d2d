"""Lightning indexer in plain torch: exact semantics, bounded memory."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.layout import Keys, Queries

# Scores of all heads are held for one chunk of queries only.
_CHUNK_BYTES = 64 << 20


def forward(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    requests: Queries,
    spans: Keys,
    sparse_count: int,
    *,
    causal: bool,
) -> Tensor:
    """int32 [rows, sparse_count] for query [rows, H, D], key [flat rows, D], weights [rows, H]."""
    out = torch.full((query.shape[0], sparse_count), -1, dtype=torch.int32)
    for b, (start, q_len) in enumerate(zip(requests.starts, requests.lengths, strict=True)):
        k_len = spans.lengths[b]
        if q_len == 0 or k_len == 0:
            continue
        first = k_len - q_len + 1 if causal else k_len
        visible = (first + torch.arange(q_len) * int(causal)).clamp_(min=0)
        block = out[start : start + q_len]
        if k_len <= sparse_count:
            position = torch.arange(k_len, dtype=torch.int32)
            block[:, :k_len] = torch.where(position < visible[:, None], position, -1)
            continue
        where = spans.rows(torch.full((k_len,), b), torch.arange(k_len))
        scored = _accumulator(query.dtype)
        k = key[where].to(scored)
        step = max(1, _CHUNK_BYTES // (4 * query.shape[1] * k_len))
        for i in range(0, q_len, step):
            rows = slice(start + i, start + min(i + step, q_len))
            score = _scores(query[rows].to(scored), k, weights[rows].to(scored))
            out[rows] = _select(score, visible[i : i + step], sparse_count)
    return out


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _scores(query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
    """[rows, k_len] of query [rows, H, D], key [k_len, D], weights [rows, H]."""
    dots = (query.flatten(0, 1) @ key.T).relu_().view(*query.shape[:2], -1)
    score = dots[:, 0] * weights[:, :1]
    for h in range(1, query.shape[1]):
        score += dots[:, h] * weights[:, h : h + 1]
    return score


def _select(score: Tensor, visible: Tensor, count: int) -> Tensor:
    """Ascending positions of the best ``count`` of the first ``visible[i]`` scores of row i."""
    position = torch.arange(score.shape[1])
    hidden = position >= visible[:, None]
    score = score.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    score = score.masked_fill_(hidden, -torch.inf)
    threshold = score.topk(count).values[:, -1:]
    chosen = score > threshold
    tied = score == threshold
    room = count - chosen.sum(1, keepdim=True)
    chosen |= tied & (tied.cumsum(1) <= room)
    chosen &= ~hidden
    slot = chosen.cumsum(1) - 1
    row, column = chosen.nonzero(as_tuple=True)
    out = torch.full((score.shape[0], count), -1, dtype=torch.int32)
    out[row, slot[row, column]] = column.int()
    return out
