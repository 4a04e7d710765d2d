"""Writing rows into pages."""

from __future__ import annotations

import pytest
import torch

from glm5_ascend.ops import write_paged_rows
from tests.support.compare import assert_identical


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 128])
def test_rows_land_in_their_slots_and_nowhere_else(width: int, dtype: torch.dtype) -> None:
    cache = torch.full((5, 16, width), torch.nan, dtype=dtype)
    slots = torch.tensor([79, -1, 0, 16, 15, -1, 40])
    rows = torch.arange(7 * width).view(7, width).float()
    write_paged_rows(cache, rows, slots)
    wanted = torch.full((80, width), torch.nan, dtype=dtype)
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            wanted[slot] = rows[t].to(dtype)
    assert_identical(cache.view(80, width), wanted)


def test_strided_cache_and_rows() -> None:
    both = torch.zeros(4, 8, 48)
    rows = torch.randn(3, 40)[:, 5:21]
    write_paged_rows(both[..., 16:32], rows, torch.tensor([31, 0, 9]))
    assert not both[..., :16].any()
    assert not both[..., 32:].any()
    assert_identical(both.view(32, 48)[[31, 0, 9], 16:32], rows.contiguous())


def test_no_rows_and_only_padding() -> None:
    cache = torch.zeros(2, 4, 3)
    write_paged_rows(cache, torch.ones(0, 3), torch.zeros(0, dtype=torch.int64))
    write_paged_rows(cache, torch.ones(2, 3), torch.tensor([-1, -1]))
    assert not cache.any()
