"""Which rows of a call run together, and in what way: by the table ops/triton/tuning.toml.

That depends on a row's own request only, and so do its bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from glm5_ascend.ops.layout import Queries
from glm5_ascend.ops.triton import tuning
from glm5_ascend.ops.triton.tuning import Attention


class Share(NamedTuple):
    """Rows that run together: ``rows`` int64 [n], each split into ``parts``."""

    how: Attention
    rows: Tensor
    parts: int
    groups: Groups | None


class Groups(NamedTuple):
    """Neighbouring rows of one request: first row and number of each group, group of each row."""

    first: Tensor
    many: Tensor
    of_row: Tensor


def shares(
    number: torch.dtype, heads: int, requests: Queries, count: int, device: torch.device
) -> Iterator[Share]:
    """Every row of a call once.

    Args:
        number: of the rows of the cache.
        heads: of a query token.
        requests: of the call.
        count: positions of a row.
        device: where the tensors shall be.
    """
    rows: dict[Attention, list[int]] = {}
    firsts: dict[Attention, list[tuple[int, int]]] = {}
    nobody = set(range(requests.rows))
    for start, length in zip(requests.starts, requests.lengths, strict=True):
        if not length:
            continue
        how = tuning.attention(number, heads, length)
        rows.setdefault(how, []).extend(range(start, start + length))
        nobody.difference_update(range(start, start + length))
        firsts.setdefault(how, []).extend(
            (row, min(how.unite, start + length - row))
            for row in range(start, start + length, how.unite)
        )
    if nobody:
        how = tuning.attention(number, heads, 0)._replace(parts=1, unite=1)
        yield Share(how, torch.tensor(sorted(nobody), device=device), 1, None)
    for how, every in rows.items():
        parts = max(1, min(how.parts, count // how.part))
        groups = None
        if how.unite > 1:
            first, many = (torch.tensor(each) for each in zip(*firsts[how], strict=True))
            of_row = torch.arange(len(first)).repeat_interleave(many)
            groups = Groups(first.to(device), many.to(device), of_row.to(device))
        yield Share(how, torch.tensor(every, device=device), parts, groups)
