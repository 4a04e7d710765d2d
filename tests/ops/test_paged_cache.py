"""Writing rows into pages."""

from __future__ import annotations

import struct
from functools import partial

import numpy as np
import pytest
import torch

from glm5_ascend import ops
from tests.support.compare import assert_identical

read_kv_rows = partial(ops.read_kv_rows, backend="reference")
write_kv_rows = partial(ops.write_kv_rows, backend="reference")
write_paged_rows = partial(ops.write_paged_rows, backend="reference")


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


def unpacked(row: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes [512], rotated F32 [64], scales [4]) of one packed row, byte by byte."""
    words = np.array(struct.unpack_from("<64H", row, 512), dtype=np.uint32)
    scales = np.array(struct.unpack_from("<4f", row, 640))
    return np.array(struct.unpack_from("<512b", row)), (words << 16).view(np.float32), scales


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_packed_rows_hold_codes_rotated_dims_and_scales(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cache = torch.full((3, 16, 656), 99, dtype=torch.int8)
    latent, key_rope = torch.randn(4, 512).to(dtype), torch.randn(4, 64).to(dtype)
    latent *= torch.tensor([1e-3, 1.0, 30.0, 1.0])[:, None].to(dtype)
    latent[3, 128:256] = 0
    slots = torch.tensor([40, 0, -1, 17], dtype=torch.int32)
    write_kv_rows(cache, latent, key_rope, slots)
    flat = cache.view(-1, 656)
    assert (flat[[t for t in range(48) if t not in (40, 0, 17)]] == 99).all()
    for t, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        codes, rotated, scales = unpacked(flat[slot].numpy().tobytes())
        tiles = latent[t].float().view(4, 128).numpy()
        wanted = np.abs(tiles).max(1) / np.float32(127)
        np.testing.assert_array_equal(scales.astype(np.float32), wanted)
        quotient = tiles / np.where(wanted == 0, 1, wanted)[:, None]
        np.testing.assert_array_equal(codes.reshape(4, 128), np.rint(quotient))
        np.testing.assert_array_equal(rotated, key_rope[t].bfloat16().float().numpy())


def test_read_rows_are_what_was_written_rounded_to_bf16() -> None:
    torch.manual_seed(0)
    cache = torch.zeros(3, 16, 656, dtype=torch.uint8)
    latent, key_rope = torch.randn(5, 512), torch.randn(5, 64)
    slots = torch.tensor([40, 0, 47, 17, 3])
    write_kv_rows(cache, latent, key_rope, slots)
    read = torch.tensor([17, -1, 40, 17])
    ours, rotated = read_kv_rows(cache, read)
    assert ours.dtype == rotated.dtype == torch.bfloat16
    for t, source in enumerate((3, None, 0, 3)):
        if source is None:
            assert not ours[t].any()
            assert not rotated[t].any()
            continue
        assert_identical(rotated[t], key_rope[source].bfloat16())
        codes, _, scales = unpacked(cache.view(-1, 656)[slots[source]].numpy().tobytes())
        exact = codes.reshape(4, 128) * scales.astype(np.float32)[:, None].astype(np.float64)
        wanted = torch.from_numpy(exact.reshape(-1)).float().bfloat16()
        assert_identical(ours[t], wanted)
        error = (ours[t].float() - latent[source]).abs().view(4, 128).amax(1)
        assert (error <= latent[source].abs().view(4, 128).amax(1) * (0.5 / 127 + 2**-8)).all()


def test_packed_tiles_that_are_not_finite_or_subnormal() -> None:
    cache = torch.zeros(1, 16, 656, dtype=torch.int8)
    latent = torch.ones(1, 512)
    latent[0, 3], latent[0, 130], latent[0, 256:384] = torch.nan, torch.inf, 0
    latent[0, 384:] = 2e-43  # the scale has one bit
    write_kv_rows(cache, latent, torch.zeros(1, 64), torch.tensor([5]))
    codes, _, scales = unpacked(cache[0, 5].numpy().tobytes())
    assert not codes[:384].any()
    assert not np.isfinite(scales[:2]).any()
    assert scales[2] == 0
    assert (codes[384:] == 127).all()


def test_packed_rows_of_an_empty_cache_and_no_slots() -> None:
    cache = torch.zeros(0, 16, 656, dtype=torch.int8)
    write_kv_rows(cache, torch.ones(2, 512), torch.ones(2, 64), torch.tensor([-1, -1]))
    latent, key_rope = read_kv_rows(cache, torch.tensor([-1]))
    assert not latent.any()
    assert not key_rope.any()
    assert read_kv_rows(torch.zeros(1, 16, 656, dtype=torch.int8), torch.zeros(0).long())[
        0
    ].shape == (0, 512)
