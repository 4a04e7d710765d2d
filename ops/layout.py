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
    starts: Tensor | None  # int64 [B]: first flat row (BSND, TND)
    block_table: Tensor | None  # int64 [B, max_blocks] (PA_BSND)
    block_size: int

    def flat_rows(self, request: Tensor, position: Tensor) -> Tensor:
        """Row of ``position`` of ``request`` (int64, broadcast) in the flattened key tensor."""
        if self.starts is not None:
            return self.starts[request] + position
        assert self.block_table is not None
        block = self.block_table[request, position // self.block_size]
        return block * self.block_size + position % self.block_size


def query_spans(shape: torch.Size, layout: str, lengths: Tensor | None) -> Queries:
    """Requests of a query of ``shape``; ``lengths`` as the layout wants them.

    Raises:
        ValueError: unknown layout, wrong rank, missing, decreasing or too large lengths.
    """
    _check_rank("query", shape, layout, {"BSND": 4, "TND": 3})
    if layout == "TND":
        starts, each = _from_prefix_sums("query", lengths, shape[0])
        return Queries(starts, each, shape[0])
    batch, seq = shape[:2]
    return Queries(
        [b * seq for b in range(batch)], _per_entry("query", lengths, shape), batch * seq
    )


def key_spans(
    shape: torch.Size, layout: str, lengths: Tensor | None, block_table: Tensor | None
) -> Keys:
    """Requests of a key tensor of ``shape``.

    Raises:
        ValueError: unknown layout, wrong rank, missing or impossible lengths, missing or short
            block table.
    """
    _check_rank("key", shape, layout, {"BSND": 4, "TND": 3, "PA_BSND": 4})
    if (layout == "PA_BSND") != (block_table is not None):
        raise ValueError(f"layout PA_BSND and a block_table go together, not with {layout}")
    if layout == "TND":
        starts, each = _from_prefix_sums("key", lengths, shape[0])
        return Keys(each, torch.tensor(starts, dtype=torch.int64), None, 0)
    if block_table is None:
        return Keys(_per_entry("key", lengths, shape), torch.arange(shape[0]) * shape[1], None, 0)
    if lengths is None:
        raise ValueError("a PA_BSND key needs its lengths per request")
    each = _ints(lengths)
    if block_table.ndim != 2 or block_table.shape[0] != len(each):
        raise ValueError(f"block_table {tuple(block_table.shape)} needs {len(each)} rows")
    if any(n < 0 or n > block_table.shape[1] * shape[1] for n in each):
        raise ValueError(
            f"key lengths {each} do not fit {block_table.shape[1]} blocks of {shape[1]}"
        )
    return Keys(each, None, block_table.long(), shape[1])


def visible_keys(requests: Queries, spans: Keys, *, causal: bool) -> tuple[Tensor, Tensor]:
    """(request, visible) int64 [rows]: whose row it is and how many of its keys it sees.

    Causal and right aligned: query i of n sees keys 0 .. k_len - n + i. Rows of no request have
    request 0 and see nothing.
    """
    request = torch.zeros(requests.rows, dtype=torch.int64)
    visible = torch.zeros(requests.rows, dtype=torch.int64)
    lengths = torch.tensor(requests.lengths, dtype=torch.int64)
    owner = torch.arange(len(requests.lengths)).repeat_interleave(lengths)
    offset = torch.arange(owner.shape[0]) - (lengths.cumsum(0) - lengths)[owner]
    row = torch.tensor(requests.starts, dtype=torch.int64)[owner] + offset
    k_len = torch.tensor(spans.lengths, dtype=torch.int64)[owner]
    request[row] = owner
    visible[row] = (k_len - lengths[owner] + offset + 1).clamp_(min=0) if causal else k_len
    return request, visible


def _check_rank(what: str, shape: torch.Size, layout: str, ranks: dict[str, int]) -> None:
    if layout not in ranks:
        raise ValueError(f"the layout of {what} must be one of {', '.join(ranks)}, not {layout}")
    if len(shape) != ranks[layout]:
        raise ValueError(f"{what} {tuple(shape)} has not the {ranks[layout]} axes of {layout}")


def _ints(lengths: Tensor) -> list[int]:
    return [int(n) for n in lengths.tolist()]


def _per_entry(what: str, lengths: Tensor | None, shape: torch.Size) -> list[int]:
    batch, seq = shape[:2]
    each = [seq] * batch if lengths is None else _ints(lengths)
    if len(each) != batch or any(n < 0 or n > seq for n in each):
        raise ValueError(f"{what} lengths {each} do not fit BSND {tuple(shape)}")
    return each


def _from_prefix_sums(what: str, lengths: Tensor | None, total: int) -> tuple[list[int], list[int]]:
    if lengths is None:
        raise ValueError(f"a TND {what} needs its lengths as prefix sums")
    ends = _ints(lengths)
    starts = [0, *ends[:-1]] if ends else []
    each = [end - start for start, end in zip(starts, ends, strict=True)]
    if any(n < 0 for n in each) or (ends and ends[-1] > total):
        raise ValueError(f"{what} lengths {ends} are no prefix sums within {total} tokens")
    return starts, each
