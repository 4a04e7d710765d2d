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
    """Requests of a query tensor whose leading axes were flattened to rows.

    ``starts[b]`` is the first row of request b and ``lengths[b]`` its number of query tokens.
    """

    starts: list[int]
    lengths: list[int]
    rows: int

    def request_of_row(self) -> tuple[Tensor, Tensor]:
        """(request, offset in it) int64 [rows]; request -1 for rows that belong to none."""
        request = torch.full((self.rows,), -1, dtype=torch.int64)
        offset = torch.zeros(self.rows, dtype=torch.int64)
        for b, (start, length) in enumerate(zip(self.starts, self.lengths, strict=True)):
            request[start : start + length] = b
            offset[start : start + length] = torch.arange(length)
        return request, offset


@dataclass(frozen=True, slots=True)
class Keys:
    """Requests of a key tensor: ``lengths[b]`` keys each, found through ``rows``."""

    lengths: list[int]
    starts: Tensor | None  # int64 [B]: first flat row (BSND, TND)
    block_table: Tensor | None  # int64 [B, max_blocks] (PA_BSND)
    block_size: int

    def rows(self, request: Tensor, position: Tensor) -> Tensor:
        """Flat row number of ``position`` (int64, any shape) of ``request`` (same shape)."""
        if self.block_table is None:
            assert self.starts is not None
            return self.starts[request] + position
        block = self.block_table[request, position // self.block_size]
        return block * self.block_size + position % self.block_size


def queries(shape: torch.Size, layout: str, lengths: Tensor | None) -> Queries:
    """Requests of a query of ``shape``; ``lengths`` as the layout wants them.

    Raises:
        ValueError: unknown layout, missing, decreasing or too large lengths.
    """
    if layout == "BSND":
        batch, seq = shape[0], shape[1]
        each = [seq] * batch if lengths is None else _ints(lengths)
        if len(each) != batch or any(n < 0 or n > seq for n in each):
            raise ValueError(f"query lengths {each} do not fit a BSND query of {tuple(shape)}")
        return Queries([b * seq for b in range(batch)], each, batch * seq)
    if layout == "TND":
        starts, each = _from_prefix_sums(lengths, shape[0], "query")
        return Queries(starts, each, shape[0])
    raise ValueError(f"layout_query must be BSND or TND, not {layout}")


def keys(
    shape: torch.Size, layout: str, lengths: Tensor | None, block_table: Tensor | None
) -> Keys:
    """Requests of a key tensor of ``shape``.

    Raises:
        ValueError: unknown layout, missing or impossible lengths, missing or short block table.
    """
    if (layout == "PA_BSND") != (block_table is not None):
        raise ValueError("block_table goes with layout_key PA_BSND and with no other")
    if layout == "BSND":
        batch, seq = shape[0], shape[1]
        each = [seq] * batch if lengths is None else _ints(lengths)
        if len(each) != batch or any(n < 0 or n > seq for n in each):
            raise ValueError(f"key lengths {each} do not fit a BSND key of {tuple(shape)}")
        return Keys(each, torch.arange(batch) * seq, None, 0)
    if layout == "TND":
        starts, each = _from_prefix_sums(lengths, shape[0], "key")
        return Keys(each, torch.tensor(starts), None, 0)
    if layout == "PA_BSND" and block_table is not None:
        if lengths is None:
            raise ValueError("a PA_BSND key needs actual_seq_lengths per request")
        each = _ints(lengths)
        if block_table.ndim != 2 or block_table.shape[0] != len(each):
            raise ValueError(f"block_table {tuple(block_table.shape)} needs {len(each)} rows")
        if max(each, default=0) > block_table.shape[1] * shape[1]:
            raise ValueError(f"key lengths {each} exceed a block table of {block_table.shape[1]}")
        return Keys(each, None, block_table.long(), shape[1])
    raise ValueError(f"layout_key must be BSND, TND or PA_BSND, not {layout}")


def _ints(lengths: Tensor) -> list[int]:
    return [int(n) for n in lengths.tolist()]


def _from_prefix_sums(lengths: Tensor | None, total: int, what: str) -> tuple[list[int], list[int]]:
    if lengths is None:
        raise ValueError(f"a TND {what} needs actual_seq_lengths as prefix sums")
    ends = _ints(lengths)
    starts = [0, *ends[:-1]] if ends else []
    each = [end - start for start, end in zip(starts, ends, strict=True)]
    if any(n < 0 for n in each) or (ends and ends[-1] > total):
        raise ValueError(f"{what} lengths {ends} are no prefix sums within {total} tokens")
    return starts, each
