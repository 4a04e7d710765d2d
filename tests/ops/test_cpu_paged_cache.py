"""Cache kernels in C++: the bits of the reference, with every instruction set."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import read_kv_rows, write_kv_rows, write_paged_rows
from tests.support.compare import assert_identical

pytestmark = pytest.mark.usefixtures("instructions")

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SLOTS = [40, 0, -1, 17, 3, 9, 12, 31, 30, -1, 47]


def rows_of(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Latents from subnormal to huge, with an empty tile, a NaN and an infinity; rope."""
    torch.manual_seed(0)
    latent = (torch.randn(11, 512) * torch.logspace(-43, 33, 11)[:, None]).to(dtype)
    latent[3, 128:256], latent[4, 5], latent[5, 300] = 0, torch.nan, -torch.inf
    return latent, torch.randn(11, 64).to(dtype)


@pytest.mark.parametrize("slots", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_packed_rows(dtype: torch.dtype, slots: torch.dtype) -> None:
    latent, rope = rows_of(dtype)
    where = torch.tensor(SLOTS, dtype=slots)
    caches, read = [], []
    for backend in ("cpu", "reference"):
        cache = torch.full((3, 16, 700), 99, dtype=torch.int8)[..., :656]
        write_kv_rows(cache, latent, rope, where, backend=backend)
        caches.append(cache)
        read.append(read_kv_rows(cache, where, backend=backend))
    assert_identical(caches[0], caches[1])
    for found, wanted in zip(*read, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert read[0][0].isnan().any()


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8], ids=str)
@pytest.mark.parametrize("width", [1, 3, 128])
def test_rows(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows = (torch.randn(11, width + 5) * 50).to(
        torch.int8 if dtype == torch.int8 else torch.float32
    )
    # Every second entry of a longer tensor.
    where = torch.tensor(SLOTS).repeat_interleave(2)[::2]
    caches = []
    for backend in ("cpu", "reference"):
        cache = torch.full((3, 16, width + 7), 9, dtype=dtype)
        write_paged_rows(cache[..., 4 : 4 + width], rows[:, 2 : 2 + width], where, backend=backend)
        caches.append(cache)
    assert_identical(caches[0], caches[1])
    assert not (caches[0] == 9).all()


def test_last_of_two_rows_for_a_slot_stays() -> None:
    cache = torch.zeros(1, 1, 4)
    write_paged_rows(cache, torch.arange(8.0).view(2, 4), torch.tensor([0, 0]), backend="cpu")
    assert_identical(cache[0], torch.arange(4.0, 8.0)[None])
