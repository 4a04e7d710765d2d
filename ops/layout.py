"""Where rows lie: query and key layouts of the sparse attention operators.

Layouts follow torch_npu: ``BSND`` [batch, seq, heads, dim] with lengths per batch entry, ``TND``
[tokens, heads, dim] with lengths as prefix sums, and for keys ``PA_BSND`` [blocks, block_size, 1,
dim] with lengths per batch entry and a block table [batch, max_blocks].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from glm5_ascend.ops import checks
from glm5_ascend.ops.errors import ArgumentError

QUERY_RANKS = {"BSND": 4, "TND": 3}
KEY_RANKS = {"BSND": 4, "TND": 3, "PA_BSND": 4}
# torch_npu's limits of a page; what runs here runs there.
BLOCK_STEP, MAX_BLOCK = 16, 1024


class Layout(NamedTuple):
    """Layout arguments of one call, and how the operator names two of them."""

    query: str
    key: str
    lengths_query: Tensor | None
    lengths_key: Tensor | None
    block_table: Tensor | None
    layout_name: str = "layout_key"
    lengths_name: str = "actual_seq_lengths_key"


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
    """Requests of a key tensor: ``lengths[b]`` keys each, found through ``flat_rows``.

    ``starts[b]`` is the first flat row of request b; the list is empty with a block table.
    ``block_table`` is int32 [B, max_blocks] as the caller passed it: last axis dense, rows at any
    distance, on the device of the keys. The entries that a request uses are in range.
    """

    lengths: list[int]
    starts: list[int]
    device: torch.device
    block_table: Tensor | None = None
    block_size: int = 0

    def flat_rows(self, request: Tensor, position: Tensor) -> Tensor:
        """Row of ``position`` of ``request`` (int64, broadcast) in the flattened key tensor."""
        if self.block_table is None:
            return torch.tensor(self.starts, device=self.device)[request] + position
        block = self.block_table[request, position // self.block_size].long()
        return block * self.block_size + position % self.block_size


def check(layout: Layout, query: Tensor, key: Tensor) -> None:
    """Check everything about the layouts that shapes, strides, dtypes and devices tell.

    Raises:
        ArgumentError: unknown layout, wrong rank, lengths or block table that are missing,
            superfluous or of a wrong shape, a page size that is no multiple of 16 up to 1024, a
            key whose rows do not lie at one distance, different numbers of requests.
    """
    _check_rank("query", "layout_query", query, layout.query, QUERY_RANKS)
    _check_rank("key", layout.layout_name, key, layout.key, KEY_RANKS)
    checks.dense("query", query)
    checks.rows("key", key)
    checks.device("key", key, "query", query.device)
    _check_lengths("actual_seq_lengths_query", layout.lengths_query, query)
    _check_lengths(layout.lengths_name, layout.lengths_key, query)
    if layout.query == "TND" and layout.lengths_query is None:
        raise ArgumentError(
            "a TND query needs actual_seq_lengths_query: the B prefix sums of the numbers of its "
            "tokens"
        )
    if layout.key != "BSND" and layout.lengths_key is None:
        form = "B prefix sums" if layout.key == "TND" else "B lengths, one per request"
        raise ArgumentError(f"a {layout.key} key needs {layout.lengths_name}: {form}")
    _check_table(layout, key)
    queries, keys = _count(layout.lengths_query, query), _count(layout.lengths_key, key)
    if queries != keys:
        raise ArgumentError(
            f"query and key must hold the same number of requests, not {queries} and {keys} "
            f"(from {layout.query} and {layout.key})"
        )


def spans(layout: Layout, query: Tensor, key: Tensor) -> tuple[Queries, Keys]:
    """Requests of ``query`` and ``key`` that passed ``check``; reads the lengths.

    Raises:
        ArgumentError: lengths that are not of the form that their layout wants, or block table
            entries in use that name no block.
    """
    first, second = query.shape[:2]
    if layout.lengths_query is not None and layout.query == "TND":
        starts, each = _from_prefix_sums("actual_seq_lengths_query", layout.lengths_query, first)
        requests = Queries(starts, each, first)
    else:
        starts = [b * second for b in range(first)]
        each = _per_request("actual_seq_lengths_query", layout.lengths_query, first, second)
        requests = Queries(starts, each, first * second)
    return requests, _key_spans(layout, key)


def _key_spans(layout: Layout, key: Tensor) -> Keys:
    name, lengths, table = layout.lengths_name, layout.lengths_key, layout.block_table
    first, second = key.shape[:2]
    if lengths is not None and layout.key == "TND":
        starts, each = _from_prefix_sums(name, lengths, first)
        return Keys(each, starts, key.device)
    if table is None:
        each = _per_request(name, lengths, first, second)
        return Keys(each, [b * second for b in range(first)], key.device)
    each = _per_request(name, lengths, table.shape[0], table.shape[1] * second)
    _check_entries(table, each, second, first)
    return Keys(each, [], key.device, table, second)


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
    return request.to(keys.device), visible.to(keys.device)


def _check_rank(what: str, name: str, tensor: Tensor, layout: str, ranks: dict[str, int]) -> None:
    if layout not in ranks:
        raise ArgumentError(f"{name} must be one of {', '.join(ranks)}, not {layout!r}")
    if tensor.ndim != ranks[layout]:
        raise ArgumentError(
            f"a {layout} {what} must have {ranks[layout]} axes, not shape {list(tensor.shape)}"
        )


def _check_lengths(name: str, lengths: Tensor | None, query: Tensor) -> None:
    if lengths is None:
        return
    if lengths.ndim != 1 or lengths.dtype not in checks.INTEGERS:
        raise ArgumentError(f"{name} must be int32 or int64 [B], not {checks.described(lengths)}")
    # The host reads lengths; on the CPU they cost no transfer.
    if lengths.device != query.device and lengths.device.type != "cpu":
        checks.device(name, lengths, "query", query.device)


def _check_table(layout: Layout, key: Tensor) -> None:
    table = layout.block_table
    if layout.key != "PA_BSND":
        if table is not None:
            raise ArgumentError(
                f"block_table goes with the layout PA_BSND only, not with {layout.key}"
            )
        return
    if table is None:
        raise ArgumentError("a PA_BSND key needs block_table, int32 [B, max_blocks]")
    if table.ndim != 2 or table.dtype != torch.int32:
        raise ArgumentError(
            f"block_table must be int32 [B, max_blocks], not {checks.described(table)}"
        )
    checks.dense("block_table", table)
    checks.device("block_table", table, "query", key.device)
    size = key.shape[1]
    if size % BLOCK_STEP or not 0 < size <= MAX_BLOCK:
        raise ArgumentError(
            f"the block size of a PA_BSND key must be a multiple of {BLOCK_STEP} up to "
            f"{MAX_BLOCK}, not {size}"
        )
    if layout.lengths_key is not None and layout.lengths_key.shape[0] != table.shape[0]:
        raise ArgumentError(
            f"{layout.lengths_name} and block_table must name the same requests, not "
            f"{layout.lengths_key.shape[0]} and {table.shape[0]}"
        )


def _count(lengths: Tensor | None, tensor: Tensor) -> int:
    return tensor.shape[0] if lengths is None else lengths.shape[0]


def _per_request(name: str, lengths: Tensor | None, batch: int, most: int) -> list[int]:
    each = [most] * batch if lengths is None else _ints(lengths)
    if len(each) != batch or any(n < 0 or n > most for n in each):
        raise ArgumentError(
            f"{name} must be {batch} lengths of 0 to {most}, one per request, not {_brief(each)}"
        )
    return each


def _from_prefix_sums(name: str, lengths: Tensor, total: int) -> tuple[list[int], list[int]]:
    ends = _ints(lengths)
    starts = [0, *ends[:-1]] if ends else []
    each = [end - start for start, end in zip(starts, ends, strict=True)]
    if any(n < 0 for n in each) or (ends and ends[-1] > total):
        raise ArgumentError(
            f"{name} must be prefix sums (never falling, none above the {total} tokens), as TND "
            f"wants them, not {_brief(ends)}"
        )
    return starts, each


def _check_entries(table: Tensor, lengths: list[int], size: int, blocks: int) -> None:
    """Check the entries in use; engines leave anything in the rest."""
    if not table.numel():
        return
    low, high = checks.extremes(table)
    if low >= 0 and high < blocks:
        return
    for b, length in enumerate(lengths):
        used = table[b, : -(-length // size)]
        wrong = used[(used < 0) | (used >= blocks)]
        if wrong.numel():
            raise ArgumentError(
                f"block_table[{b}] names block {int(wrong[0])}, but there are {blocks} blocks"
            )


def _ints(lengths: Tensor) -> list[int]:
    values: list[int] = lengths.tolist()
    return values


def _brief(values: list[int]) -> str:
    return str(values) if len(values) <= 16 else f"{str(values[:16])[:-1]}, …]"
