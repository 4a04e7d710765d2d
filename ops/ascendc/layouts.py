"""Layout arguments of torch_npu's operators, from the flattened rows that backends get."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from glm5_ascend.ops.layout import Keys, Queries


@dataclass(frozen=True, slots=True)
class Form:
    """How the rows of one call become tensors of torch_npu's layouts.

    ``query`` and ``key`` are layout names. ``lead`` are the leading axes of a query tensor,
    ``key_lead`` those of a key. ``rows`` is how many rows of the query the operator gets: behind
    the last request of a TND query may lie rows of no request. Lengths are int32 on the device.
    """

    query: str
    key: str
    lead: tuple[int, ...]
    key_lead: tuple[int, ...]
    rows: int
    lengths_query: Tensor
    lengths_key: Tensor
    block_table: Tensor | None

    def queries(self, rows: Tensor) -> Tensor:
        """Query rows [rows, ..] as [B, S1, ..] or [T, ..], without gaps."""
        return rows[: self.rows].reshape(*self.lead, *rows.shape[1:]).contiguous()

    def keys(self, rows: Tensor) -> Tensor:
        """Key rows [flat rows, ..] with one head: [blocks, block_size, 1, ..] and so on."""
        return rows.view(*self.key_lead, 1, *rows.shape[1:])


def form(requests: Queries, keys: Keys, key_rows: int) -> Form | None:
    """The layouts of a call with ``key_rows`` flat key rows.

    None where torch_npu has no such pair: without pages both have the same layout there.
    """
    device, batch = keys.device, len(requests.lengths)
    packed = requests.starts == _starts(requests.lengths)
    evenly = bool(batch) and requests.rows % batch == 0
    each = requests.rows // batch if evenly else 0
    spread = evenly and requests.starts == [b * each for b in range(batch)]

    def of(layout: str, key: str, key_lead: tuple[int, ...]) -> Form:
        together = layout == "TND"
        rows = sum(requests.lengths) if together else requests.rows
        ends = list(accumulate(requests.lengths)) if together else requests.lengths
        key_ends = list(accumulate(keys.lengths)) if key == "TND" else keys.lengths
        return Form(
            layout,
            key,
            (rows,) if together else (batch, each),
            key_lead,
            rows,
            torch.tensor(ends, dtype=torch.int32, device=device),
            torch.tensor(key_ends, dtype=torch.int32, device=device),
            None if keys.block_table is None else keys.block_table.contiguous(),
        )

    if keys.block_table is not None:
        size = keys.block_size
        return of("TND" if packed else "BSND", "PA_BSND", (key_rows // size, size))
    if packed and keys.starts == _starts(keys.lengths):
        return of("TND", "TND", (key_rows,))
    if spread and key_rows % batch == 0:
        distance = key_rows // batch
        if keys.starts == [b * distance for b in range(batch)]:
            return of("BSND", "BSND", (batch, distance))
    return None


def idle_rows(requests: Queries) -> list[int]:
    """Rows of the query that belong to no request."""
    taken = [False] * requests.rows
    for start, count in zip(requests.starts, requests.lengths, strict=True):
        taken[start : start + count] = [True] * count
    return [row for row, used in enumerate(taken) if not used]


def spread_rows(result: Tensor, requests: Queries, fill: float) -> Tensor:
    """[rows, ..] of the operator's result [<= rows, ..]: rows of no request hold ``fill``."""
    idle = idle_rows(requests)
    if not idle:
        return result
    out = result.new_full((requests.rows, *result.shape[1:]), fill)
    out[: len(result)] = result
    out[torch.tensor(idle, device=result.device)] = fill
    return out


def _starts(lengths: list[int]) -> list[int]:
    return list(accumulate(lengths, initial=0))[:-1]
