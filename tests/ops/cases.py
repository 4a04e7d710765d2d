"""Requests with awkward lengths, laid out contiguously or in pages, and plain NumPy formulas.

Nothing here uses ``glm5_ascend``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Requests:
    """``lengths``: (query tokens, keys) of each request."""

    name: str
    lengths: tuple[tuple[int, int], ...]
    seed: int = 0

    def __str__(self) -> str:
        return self.name

    @property
    def tokens(self) -> int:
        return sum(q for q, _ in self.lengths)

    def query_ends(self) -> Tensor:
        return torch.tensor([q for q, _ in self.lengths]).cumsum(0).int()

    def key_lengths(self) -> Tensor:
        return torch.tensor([k for _, k in self.lengths], dtype=torch.int32)

    def rows(self) -> list[tuple[int, int]]:
        """(request, number of visible keys) of every query token, causal and right aligned."""
        return [
            (b, max(k - q + i + 1, 0)) for b, (q, k) in enumerate(self.lengths) for i in range(q)
        ]


REQUESTS = (
    Requests("one_token", ((1, 1),)),
    Requests("decode", ((1, 213), (1, 62), (1, 1), (1, 300), (1, 65), (1, 64))),
    Requests("prefill", ((213, 213),), seed=1),
    Requests("chunk", ((62, 213), (3, 3)), seed=2),
    Requests("drafts", ((4, 130), (4, 64), (4, 66), (4, 4)), seed=3),
    Requests("mixed", ((0, 70), (1, 213), (100, 300), (0, 0), (1, 1), (9, 80)), seed=4),
    Requests("more_queries_than_keys", ((5, 2), (80, 70)), seed=5),
)


@dataclass
class Paged:
    """Keys of several requests in shuffled pages of NaN-poisoned caches."""

    block_table: Tensor
    caches: dict[str, Tensor] = field(default_factory=dict)

    def layout(self, requests: Requests) -> dict[str, Any]:
        return {
            "block_table": self.block_table,
            "layout_query": "TND",
            "actual_seq_lengths_query": requests.query_ends(),
        }


def page(requests: Requests, keys: dict[str, list[Tensor]], block_size: int = 16) -> Paged:
    """Scatter per-request keys [k_len, width] into caches [blocks, block_size, 1, width]."""
    pages = [-(-k // block_size) for _, k in requests.lengths]
    blocks = sum(pages) + 3
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(requests.seed))
    # Unused table entries name a block that holds NaN only.
    table = torch.full((len(pages), max([*pages, 1]) + 1), int(order[-1]), dtype=torch.int32)
    used = 0
    for b, count in enumerate(pages):
        table[b, :count] = order[used : used + count].int()
        used += count
    result = Paged(table)
    for name, per_request in keys.items():
        cache = torch.full((blocks, block_size, 1, per_request[0].shape[-1]), torch.nan)
        cache = cache.to(per_request[0].dtype)
        for b, values in enumerate(per_request):
            for s, row in enumerate(values):
                cache[int(table[b, s // block_size]), s % block_size, 0] = row
        result.caches[name] = cache
    return result


def index_scores(query: np.ndarray, keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[L] of query [H, D], keys [L, D], weights [H], one head after the other in F64."""
    total = np.zeros(len(keys))
    for q, w in zip(query.astype(np.float64), weights.astype(np.float64), strict=True):
        total += w * np.maximum(keys.astype(np.float64) @ q, 0)
    return total


def best_positions(scores: np.ndarray, count: int) -> list[int]:
    """Ascending positions of the ``count`` best; the lower position wins; NaN is the worst."""
    ranked = np.where(np.isnan(scores), -np.inf, scores)
    order = sorted(range(len(scores)), key=lambda s: (-ranked[s], s))
    return sorted(order[:count])


def attention(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, dtype: Any = np.float64
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(out [H, Lv], max [H], sum [H]) of query [H, D] over keys [n, D], values [n, Lv]."""
    query, keys, values = (x.astype(dtype) for x in (query, keys, values))
    heads = len(query)
    if not len(keys):
        empty = np.zeros((heads, values.shape[1]), dtype)
        return empty, np.full(heads, -np.inf, dtype), np.zeros(heads, dtype)
    score = dtype(scale) * (query @ keys.T)
    peak = score.max(1)
    weight = np.exp(score - peak[:, None])
    total = weight.sum(1)
    return weight @ values / total[:, None], peak, total


def rotate(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """Complex product of the pairs (x[2j], x[2j + 1]) with exp(i * position * theta^(-2j / d))."""
    dim = x.shape[-1]
    pairs = x.astype(np.float64).reshape(*x.shape[:-1], dim // 2, 2)
    angle = position * theta ** (-np.arange(0, dim, 2) / dim)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle)
    return np.stack((turned.real, turned.imag), -1).reshape(x.shape)
