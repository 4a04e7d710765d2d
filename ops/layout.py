"""Where rows lie: query and key layouts of the sparse attention operators.

Layouts follow torch_npu: ``BSND`` [batch, seq, heads, dim] with lengths per batch entry, ``TND``
[tokens, heads, dim] with lengths as prefix sums, and for keys ``PA_BSND`` [blocks, block_size, 1,
dim] with lengths per batch entry and a block table [batch, max_blocks].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Queries:
    """Requests of a query tensor whose leading axes were flattened to ``rows`` rows.

    ``starts[b]`` is the first row of request b and ``lengths[b]`` its number of query tokens.
    """

    starts: list[int]
    lengths: list[int]
    rows: int


@dataclass(frozen=True, slots=True)
class Keys:
    """Requests of a key tensor: ``lengths[b]`` keys each, found through ``flat_rows``."""

    lengths: list[int]
    starts: Tensor  # int64 [B]: first flat row; unused with a block table
    block_table: Tensor | None = None  # int64 [B, max_blocks]
    block_size: int = 0

    def flat_rows(self, request: Tensor, position: Tensor) -> Tensor:
        """Row of ``position`` of ``request`` (int64, broadcast) in the flattened key tensor."""
        if self.block_table is None:
            return self.starts[request] + position
        block = self.block_table[request, position // self.block_size]
        return block * self.block_size + position % self.block_size


def spans(
    query: Tensor,
    key: Tensor,
    layout_query: str,
    layout_key: str,
    lengths_query: Tensor | None,
    lengths_key: Tensor | None,
    block_table: Tensor | None,
) -> tuple[Queries, Keys]:
    """Requests of ``query`` and ``key``; lengths as the layouts want them.

    Raises:
        ValueError: unknown layout, wrong rank, missing or impossible lengths, a block table that
            is missing, superfluous or too small, or different numbers of requests.
    """
    requests = _query_spans(query, layout_query, lengths_query)
    keys = _key_spans(key, layout_key, lengths_key, block_table)
    if len(requests.lengths) != len(keys.lengths):
        raise ValueError(f"{len(requests.lengths)} queries but {len(keys.lengths)} keys")
    return requests, keys


def _query_spans(query: Tensor, layout: str, lengths: Tensor | None) -> Queries:
    _check_rank("query", query, layout, {"BSND": 4, "TND": 3})
    if layout == "TND":
        starts, each = _from_prefix_sums("query", lengths, query.shape[0])
        return Queries(starts, each, query.shape[0])
    batch, seq = query.shape[:2]
    starts = [b * seq for b in range(batch)]
    return Queries(starts, _per_entry("query", lengths, batch, seq), batch * seq)


def _key_spans(
    key: Tensor, layout: str, lengths: Tensor | None, block_table: Tensor | None
) -> Keys:
    _check_rank("key", key, layout, {"BSND": 4, "TND": 3, "PA_BSND": 4})
    if (layout == "PA_BSND") != (block_table is not None):
        raise ValueError(f"block_table goes with the layout PA_BSND only, not with {layout}")
    first, second = key.shape[:2]
    starts: list[int] = []
    if layout == "TND":
        starts, each = _from_prefix_sums("key", lengths, first)
    elif block_table is None:
        starts, each = [b * second for b in range(first)], _per_entry("key", lengths, first, second)
    elif lengths is None:
        raise ValueError("a PA_BSND key needs its lengths per request")
    else:
        each = _per_entry("key", lengths, block_table.shape[0], block_table.shape[1] * second)
        block_table = block_table.to(key.device, torch.int64)
    where = torch.tensor(starts, dtype=torch.int64, device=key.device)
    return Keys(each, where, block_table, second)


def visible_keys(requests: Queries, keys: Keys, *, causal: bool) -> tuple[Tensor, Tensor]:
    """(request, visible) int64 [rows]: whose row it is and how many of its keys it sees.

    Causal and right aligned: query i of n sees keys 0 .. k_len - n + i. Rows of no request have
    request 0 and see nothing.
    """
    lengths = torch.tensor(requests.lengths, dtype=torch.int64)
    owner = torch.arange(len(lengths)).repeat_interleave(lengths)
    offset = torch.arange(len(owner)) - (lengths.cumsum(0) - lengths)[owner]
    row = torch.tensor(requests.starts, dtype=torch.int64)[owner] + offset
    seen = torch.tensor(keys.lengths, dtype=torch.int64)[owner]
    if causal:
        seen = (seen - lengths[owner] + offset + 1).clamp_(min=0)
    request = torch.zeros(requests.rows, dtype=torch.int64).index_copy_(0, row, owner)
    visible = torch.zeros(requests.rows, dtype=torch.int64).index_copy_(0, row, seen)
    return request.to(keys.starts.device), visible.to(keys.starts.device)


def _check_rank(what: str, tensor: Tensor, layout: str, ranks: dict[str, int]) -> None:
    if layout not in ranks:
        raise ValueError(f"the layout of {what} must be one of {', '.join(ranks)}, not {layout}")
    if tensor.ndim != ranks[layout]:
        raise ValueError(f"{what} {tuple(tensor.shape)} needs the {ranks[layout]} axes of {layout}")


def _ints(lengths: Tensor) -> list[int]:
    return [int(n) for n in lengths.tolist()]


def _per_entry(what: str, lengths: Tensor | None, batch: int, most: int) -> list[int]:
    each = [most] * batch if lengths is None else _ints(lengths)
    if len(each) != batch or any(n < 0 or n > most for n in each):
        raise ValueError(f"{what} lengths {each} must be {batch} numbers up to {most}")
    return each


def _from_prefix_sums(what: str, lengths: Tensor | None, total: int) -> tuple[list[int], list[int]]:
    if lengths is None:
        raise ValueError(f"a TND {what} needs its lengths as prefix sums")
    ends = _ints(lengths)
    starts = [0, *ends][: len(ends)]
    each = [end - start for start, end in zip(starts, ends, strict=True)]
    if any(n < 0 for n in each) or sum(each) > total:
        raise ValueError(f"{what} lengths {ends} are no prefix sums within {total} tokens")
    return starts, each
