"""Requests with awkward lengths, laid out contiguously or in pages; memory of nobody is poisoned.

Nothing here uses another part of the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# Rows behind the last request of a TND tensor, blocks of a cache that no request owns.
_SPARE = 3


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
        """Query tokens of all requests."""
        return sum(q for q, _ in self.lengths)

    def query_ends(self) -> Tensor:
        """Prefix sums, int32."""
        return torch.tensor([q for q, _ in self.lengths]).cumsum(0).int()

    def key_lengths(self) -> Tensor:
        """Keys of each request, int32."""
        return torch.tensor([k for _, k in self.lengths], dtype=torch.int32)

    def rows(self, *, causal: bool = True) -> list[tuple[int, int]]:
        """(request, number of visible keys) of every query token; causal is right aligned."""
        return [
            (b, max(k - q + i + 1, 0) if causal else k)
            for b, (q, k) in enumerate(self.lengths)
            for i in range(q)
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
    """Keys of several requests in shuffled pages of poisoned caches."""

    block_table: Tensor
    caches: dict[str, Tensor] = field(default_factory=dict)

    def layout(self, requests: Requests) -> dict[str, Any]:
        """Arguments that say how TND queries find their keys."""
        return {
            "block_table": self.block_table,
            "layout_query": "TND",
            "actual_seq_lengths_query": requests.query_ends(),
        }


def poison(shape: Sequence[int], like: Tensor) -> Tensor:
    """Values that show wherever they are used: NaN, or the largest integer."""
    value = torch.nan if like.is_floating_point() else torch.iinfo(like.dtype).max
    return torch.full(tuple(shape), value, dtype=like.dtype)


def page(requests: Requests, keys: dict[str, list[Tensor]], block_size: int = 16) -> Paged:
    """Scatter per-request keys [k_len, width] into caches [blocks, block_size, 1, width]."""
    pages = [-(-k // block_size) for _, k in requests.lengths]
    blocks = sum(pages) + _SPARE
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(requests.seed))
    # Unused table entries name a block that holds poison only, the last ones no block at all.
    table = torch.full((len(pages), max([*pages, 1]) + 2), int(order[-1]), dtype=torch.int32)
    table[:, -1] = -1
    used = 0
    for b, count in enumerate(pages):
        table[b, :count] = order[used : used + count].int()
        used += count
    result = Paged(table)
    for name, per_request in keys.items():
        width = per_request[0].shape[-1]
        flat = poison((blocks * block_size, width), per_request[0])
        for b, values in enumerate(per_request):
            position = torch.arange(len(values))
            block = table[b].long()[position // block_size]
            flat[block * block_size + position % block_size] = values
        result.caches[name] = flat.view(blocks, block_size, 1, width)
    return result


@dataclass(frozen=True)
class Layout:
    """Layouts of queries and keys, and the page size of PA_BSND."""

    query: str = "TND"
    key: str = "PA_BSND"
    block_size: int = 16

    def __str__(self) -> str:
        return f"{self.query}-{self.key}" + (f"{self.block_size}" if self.key[0] == "P" else "")


PAGES = Layout()


class Batch:
    """Some requests in some order and layout.

    Args:
        requests: all requests, in the order in which results are wanted.
        layout: how to lay them out.
        order: the requests that the batch holds, in its order.
    """

    def __init__(self, requests: Requests, layout: Layout, order: Sequence[int]) -> None:
        self.order = list(order)
        lengths = tuple(requests.lengths[b] for b in self.order)
        self.requests = Requests(requests.name, lengths, requests.seed + sum(self.order[:1]))
        self.layout = layout
        self._most = max((q for q, _ in lengths), default=0)
        first, ends = 0, requests.query_ends().tolist()
        where: list[int] = []
        tokens: list[int] = []
        for b, (q, _) in zip(self.order, lengths, strict=True):
            where += range(first, first + q)
            tokens += range(ends[b] - q, ends[b])
            first += self._most if layout.query == "BSND" else q
        self.rows = first + (_SPARE if layout.query == "TND" else 0)
        self.tokens = torch.tensor(tokens, dtype=torch.int64)
        self.where = torch.tensor(where, dtype=torch.int64)

    def queries(self, rows: Tensor, empty: float | None = None) -> Tensor:
        """Query tokens [tokens, ..] of all requests in this layout.

        Rows of no request are poison, or ``empty``.
        """
        flat = poison((self.rows, *rows.shape[1:]), rows)
        if empty is not None:
            flat.fill_(empty)
        flat[self.where] = rows[self.tokens]
        if self.layout.query == "TND":
            return flat
        return flat.view(len(self.order), self._most, *rows.shape[1:])

    def keys(self, **keys: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Keys [k_len, width] of all requests: (tensors by name, where they lie).

        The second part holds ``lengths`` (int64 for BSND) and, for pages, ``block_table``.
        """
        ordered = {name: [rows[b] for b in self.order] for name, rows in keys.items()}
        lengths = self.requests.key_lengths()
        if self.layout.key == "PA_BSND":
            paged = page(self.requests, ordered, self.layout.block_size)
            return paged.caches, {"lengths": lengths, "block_table": paged.block_table}
        if self.layout.key == "TND":
            flat = {
                name: torch.cat([*rows, poison((_SPARE, rows[0].shape[-1]), rows[0])])[:, None]
                for name, rows in ordered.items()
            }
            return flat, {"lengths": lengths.cumsum(0).int()}
        most = max(int(lengths.max()), 1)
        padded = {
            name: torch.stack(
                [torch.cat([r, poison((most - len(r), r.shape[-1]), r)]) for r in rows]
            )[:, :, None]
            for name, rows in ordered.items()
        }
        return padded, {"lengths": lengths.long()}

    def query_lengths(self) -> Tensor:
        """As this layout wants them; int64 for BSND."""
        if self.layout.query == "TND":
            return self.requests.query_ends()
        return torch.tensor([q for q, _ in self.requests.lengths], dtype=torch.int64)

    def rest(self, rows: Tensor) -> Tensor:
        """The rows that belong to no request, of flattened rows of this layout."""
        other = torch.ones(self.rows, dtype=torch.bool)
        other[self.where] = False
        return rows[other]


def batches(requests: Requests, layout: Layout, *, shuffled: bool) -> list[Batch]:
    """All requests as one batch, or backwards and with the first one on its own."""
    every = range(len(requests.lengths))
    orders = [list(every)] if not shuffled else [list(every)[:0:-1], [0]]
    return [Batch(requests, layout, order) for order in orders if order]


def gather(requests: Requests, parts: Sequence[tuple[Batch, Tensor]]) -> Tensor:
    """[tokens, ..] in the order of ``requests``, of the flattened rows of every batch."""
    first = parts[0][1]
    out = first.new_empty(requests.tokens, *first.shape[1:])
    for batch, rows in parts:
        out[batch.tokens] = rows[batch.where]
    return out
