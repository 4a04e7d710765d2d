"""Lightning indexer in plain torch: exact semantics, bounded memory, batch-invariant bits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from glm5_ascend.ops.layout import Keys, Queries, visible_keys

# Dot products of all heads are held for one chunk of queries only.
_CHUNK_BYTES = 32 << 20
# Requests with at most this many query tokens (decode, drafts) are scored together.
_TOGETHER = 8
# Below these sizes BLAS takes kernels that add in another order, and a score would depend on the
# batch: the head weights get zero rows, short key lists zero keys.
_WEIGHT_ROWS = 8
_MIN_KEYS = 16


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
    """int32 [rows, sparse_count] of query [rows, H, D], key [flat rows, D], weights [rows, H].

    A row that sees at most ``sparse_count`` keys takes them all without scoring.
    """
    _, visible = visible_keys(requests, spans, causal=causal)
    position = torch.arange(sparse_count, dtype=torch.int32)
    out = torch.where(position < visible[:, None], position, -1)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    for owners, offset, count in _chunks(requests, spans, visible, sparse_count, query.shape[1]):
        row = torch.tensor([requests.starts[b] + offset for b in owners])[:, None]
        rows = (row + torch.arange(count)).flatten()
        seen = visible[rows]
        width = max(int(seen.max()), _MIN_KEYS)
        last = torch.tensor([spans.lengths[b] for b in owners])[:, None] - 1
        where = spans.flat_rows(
            torch.tensor(owners)[:, None], torch.minimum(torch.arange(width), last)
        )
        k = key.index_select(0, where.flatten()).to(dtype).view(len(owners), width, -1)
        score = scores(query[rows].to(dtype), k, weights[rows].to(dtype))
        out[rows] = best(score, seen, sparse_count)
    return out


def _chunks(
    requests: Queries, spans: Keys, visible: Tensor, sparse_count: int, heads: int
) -> Iterator[tuple[list[int], int, int]]:
    """(requests, first query, number of queries) whose rows see more than ``sparse_count`` keys.

    Requests of one chunk have equally many queries to score and differ less than twofold in
    length, so that padding to the longest is cheap.
    """
    together: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for b, (start, q_len) in enumerate(zip(requests.starts, requests.lengths, strict=True)):
        sees_more = (visible[start : start + q_len] > sparse_count).nonzero()
        if not len(sees_more):
            continue
        offset = int(sees_more[0])
        if q_len <= _TOGETHER:
            together[offset, q_len - offset, spans.lengths[b].bit_length()].append(b)
            continue
        step = max(1, _CHUNK_BYTES // (4 * heads * spans.lengths[b]))
        for first in range(offset, q_len, step):
            yield [b], first, min(step, q_len - first)
    for (offset, count, bits), owners in together.items():
        step = max(1, _CHUNK_BYTES // (4 * heads * count << bits))
        for i in range(0, len(owners), step):
            yield owners[i : i + step], offset, count


def scores(query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
    """[B * n, L] of query [B * n, H, D], key [B, L, D], weights [B * n, H].

    score = sum_h weights[h] * max(0, query[h] . key), in the dtype of the inputs.
    """
    rows, heads, _ = query.shape
    dots = torch.bmm(query.reshape(key.shape[0], -1, query.shape[2]), key.mT)
    dots = dots.relu_().view(rows, heads, -1)
    padded = functional.pad(weights[:, None], (0, 0, 0, _WEIGHT_ROWS - 1))
    return torch.bmm(padded, dots)[:, 0]


def best(score: Tensor, visible: Tensor, count: int) -> Tensor:
    """int32 [rows, count]: ascending positions of the best of the first ``visible[i]`` scores.

    Every row must see more than ``count`` keys. Equal scores: the lower position wins; NaN
    counts as minus infinity.
    """
    hidden = torch.arange(score.shape[1]) >= visible[:, None]
    score = score.masked_fill(hidden | score.isnan(), -torch.inf)
    threshold = score.topk(count).values[:, -1:]
    chosen = score >= threshold
    if int(chosen.sum()) != count * len(score):
        tied = score == threshold
        above = chosen & ~tied
        room = count - above.sum(1, keepdim=True)
        chosen = above | (tied & (tied.cumsum(1) <= room))
    return chosen.nonzero()[:, 1].view(-1, count).int()
