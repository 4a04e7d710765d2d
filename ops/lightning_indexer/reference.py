"""Lightning indexer in plain torch: exact semantics, bounded memory, batch-invariant bits."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

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
    sorted: bool = False,
    return_value: bool = False,
) -> tuple[Tensor, Tensor]:
    """(int32 [rows, sparse_count], values [rows, sparse_count] or [0] in the dtype of the sums).

    query [rows, H, D], key [flat rows, D], weights [rows, H]. Sums are F32, F64 for F64 queries.
    """
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32

    def score(rows: Tensor, where: Tensor) -> Tensor:
        k = key.index_select(0, where.flatten()).to(dtype).view(*where.shape, -1)
        return scores(query[rows].to(dtype), k, weights[rows].to(dtype))

    work = _Work(score, query.shape[1], dtype, requests, keys, sparse_count, causal)
    return _select(work, sorted=sorted, return_value=return_value)


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
    """int32 [rows, sparse_count] of int8 query [rows, H, D] and key [flat rows, D].

    weights and query_scale [rows, H], key_scale [flat rows]. The dots are whole numbers below
    2^24, hence exact in F32 in whatever order they are added.
    """
    dtype = torch.float64 if weights.dtype == torch.float64 else torch.float32

    def score(rows: Tensor, where: Tensor) -> Tensor:
        flat = where.flatten()
        k = key.index_select(0, flat).to(dtype).view(*where.shape, -1)
        scaled = weights[rows].to(dtype) * query_scale[rows].to(dtype)
        each = key_scale.index_select(0, flat).to(dtype).view(where.shape)
        total = scores(query[rows].to(dtype), k, scaled)
        return total * each.repeat_interleave(len(rows) // len(where), 0)

    work = _Work(score, query.shape[1], dtype, requests, keys, sparse_count, causal)
    return _select(work, sorted=sorted, return_value=False)[0]


class _Work(NamedTuple):
    """What to select, ``most`` keys per row.

    ``score(rows [B * n], where [B, L])`` gives [B * n, L], the scores of flat key rows ``where``.
    """

    score: Callable[[Tensor, Tensor], Tensor]
    heads: int
    dtype: torch.dtype
    requests: Queries
    keys: Keys
    most: int
    causal: bool


def _select(work: _Work, *, sorted: bool, return_value: bool) -> tuple[Tensor, Tensor]:
    """A row that sees at most ``work.most`` keys takes them all; scores only give their order."""
    request, visible = visible_keys(work.requests, work.keys, causal=work.causal)
    position = torch.arange(work.most, dtype=torch.int32, device=visible.device)
    out = torch.where(position < visible[:, None], position, -1)
    ranked = sorted or return_value
    values = torch.full(out.shape if ranked else (0,), -torch.inf, dtype=work.dtype)
    values = values.to(visible.device)
    seen = visible.tolist()
    for least, most in ((work.most, sys.maxsize), (0, work.most if ranked else 0)):
        for rows, where in _chunks(work, request, visible, seen, least, most):
            score = work.score(rows, where)
            if least:
                out[rows] = best(score, visible[rows], work.most)
            if ranked:
                out[rows], values[rows] = _ranked(score, out[rows], in_order=sorted)
    return out, values if return_value else values.new_empty(0)


def _ranked(score: Tensor, chosen: Tensor, *, in_order: bool) -> tuple[Tensor, Tensor]:
    """(positions, scores) [n, count] of ascending ``chosen``, by score if ``in_order``."""
    values = score.gather(1, chosen.long().clamp_(min=0))
    values = values.masked_fill((chosen < 0) | values.isnan(), -torch.inf)
    if in_order:
        # Stable: equal scores keep their ascending positions, and -1 stays behind -inf.
        values, order = values.sort(dim=1, descending=True, stable=True)
        chosen = chosen.gather(1, order)
    return chosen, values


def _chunks(
    work: _Work, request: Tensor, visible: Tensor, seen: list[int], least: int, most: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """(rows [B * n], flat key rows [B, L]) of all rows that see ``least`` < keys <= ``most``."""
    device = visible.device
    for starts, count in _runs(work, seen, least, most):
        first = torch.tensor(starts, device=device)
        rows = (first[:, None] + torch.arange(count, device=device)).flatten()
        longest = visible[rows].view(-1, count)[:, -1:]
        wanted = torch.arange(max(int(longest.max()), _MIN_KEYS), device=device)
        # Shorter key lists repeat their last key, which stays hidden.
        position = torch.minimum(wanted, longest - 1)
        yield rows, work.keys.flat_rows(request[first][:, None], position)


def _runs(work: _Work, seen: list[int], least: int, most: int) -> Iterator[tuple[list[int], int]]:
    """(first rows, rows each) of query runs whose rows all see ``least`` < keys <= ``most``.

    The runs of one chunk see numbers of keys that differ less than twofold, so that padding to
    the most is cheap. Within a run a later row never sees less.
    """
    requests, heads = work.requests, work.heads
    together: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    lengths = zip(requests.starts, requests.lengths, work.keys.lengths, strict=True)
    for start, q_len, k_len in lengths:
        end = bisect_right(seen, most, start, start + q_len)
        start = bisect_right(seen, least, start, end)
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
