"""Lightning indexer in plain torch: exact semantics, bounded memory, batch-invariant bits."""

from __future__ import annotations

from bisect import bisect_right
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
# batch: the head weights get zero rows, short key lists repeat a key that stays hidden.
_WEIGHT_ROWS = 8
_MIN_KEYS = 16


def forward(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    requests: Queries,
    keys: Keys,
    sparse_count: int,
    *,
    causal: bool,
) -> Tensor:
    """int32 [rows, sparse_count] of query [rows, H, D], key [flat rows, D], weights [rows, H].

    A row that sees at most ``sparse_count`` keys takes them all without scoring.
    """
    request, visible = visible_keys(requests, keys, causal=causal)
    device = query.device
    position = torch.arange(sparse_count, dtype=torch.int32, device=device)
    out = torch.where(position < visible[:, None], position, -1)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    for starts, count in _chunks(requests, keys, visible.tolist(), sparse_count, query.shape[1]):
        first = torch.tensor(starts, device=device)
        rows = (first[:, None] + torch.arange(count, device=device)).flatten()
        seen = visible[rows]
        most = seen.view(-1, count)[:, -1:]
        wanted = torch.arange(max(int(most.max()), _MIN_KEYS), device=device)
        # Shorter key lists repeat their last key, which stays hidden.
        where = keys.flat_rows(request[first][:, None], torch.minimum(wanted, most - 1))
        k = key.index_select(0, where.flatten()).to(dtype).view(*where.shape, -1)
        score = scores(query[rows].to(dtype), k, weights[rows].to(dtype))
        out[rows] = best(score, seen, sparse_count)
    return out


def _chunks(
    requests: Queries, keys: Keys, visible: list[int], sparse_count: int, heads: int
) -> Iterator[tuple[list[int], int]]:
    """(first rows, rows each) of query runs whose rows all see more than ``sparse_count`` keys.

    The runs of one chunk see numbers of keys that differ less than twofold, so that padding to
    the most is cheap. Within a run a later row never sees less.
    """
    together: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for start, q_len, k_len in zip(requests.starts, requests.lengths, keys.lengths, strict=True):
        end = start + q_len
        start = bisect_right(visible, sparse_count, start, end)
        if 0 < end - start <= _TOGETHER:
            together[end - start, k_len.bit_length()].append(start)
            continue
        step = max(1, _CHUNK_BYTES // (4 * heads * max(k_len, 1)))
        for first in range(start, end, step):
            yield [first], min(step, end - first)
    for (count, bits), starts in together.items():
        step = max(1, _CHUNK_BYTES // (4 * heads * count << bits))
        for i in range(0, len(starts), step):
            yield starts[i : i + step], count


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
    hidden = torch.arange(score.shape[1], device=score.device) >= visible[:, None]
    score = score.masked_fill(hidden | score.isnan(), -torch.inf)
    threshold = score.topk(count).values[:, -1:]
    chosen = score >= threshold
    if int(chosen.sum()) != count * len(score):
        tied = score == threshold
        above = chosen & ~tied
        room = count - above.sum(1, keepdim=True)
        chosen = above | (tied & (tied.cumsum(1) <= room))
    return chosen.nonzero()[:, 1].view(-1, count).int()
