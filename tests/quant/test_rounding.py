"""Rounding is near the best possible scale, and the integer layouts are byte-exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glm5_ascend.quant.packing import offset_bias, pack_rows, unpack_rows
from glm5_ascend.quant.rounding import relative_error, round_int4, round_int8

# Relative squared error of msModelSlim and of plain rounding to nearest (quant.md 1.6).
# (distribution, input size, bits): (msModelSlim, round to nearest)
PEERS = {
    ("gaussian", 6144, 8): (8.754e-5, 7.970e-5),
    ("laplace", 6144, 8): (2.339e-4, 2.261e-4),
    ("gaussian", 6144, 4): (0.01234, 0.02624),
    ("laplace", 6144, 4): (0.02526, 0.06958),
    ("gaussian", 2048, 4): (0.01231, 0.02251),
}


def draw(kind: str, rows: int, columns: int) -> torch.Tensor:
    generator = np.random.default_rng(7)
    values = getattr(generator, {"gaussian": "normal"}.get(kind, kind))(size=(rows, columns))
    return torch.from_numpy(0.02 * values)


@pytest.mark.parametrize(("kind", "columns", "bits"), list(PEERS))
def test_beats_the_peer(kind: str, columns: int, bits: int) -> None:
    weight = draw(kind, 256, columns)
    codes, scale = (round_int8 if bits == 8 else round_int4)(weight)
    error = relative_error(weight, codes, scale)
    peer, nearest = PEERS[kind, columns, bits]
    print(f"{kind} K={columns} int{bits}: {error:.4e} (msModelSlim {peer:.4e}, RTN {nearest:.4e})")
    assert error < peer
    assert error < nearest


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_int4_scale_is_near_the_best_of_a_dense_grid(kind: str) -> None:
    weight = draw(kind, 12, 192)
    _, scale = round_int4(weight)
    rows = weight.numpy()
    for row, chosen in zip(rows, scale.numpy()[:, 0], strict=True):
        grid = np.abs(row).max() / 7 * np.linspace(0.2, 1.1, 4001)
        best = min(_squared(row, step) for step in grid)
        assert _squared(row, float(chosen)) <= 1.02 * best


def _squared(row: np.ndarray, scale: float) -> float:
    return float(((row - scale * np.clip(np.round(row / scale), -8, 7)) ** 2).sum())


def test_int8_scales_are_exact_in_bfloat16_and_codes_belong_to_them() -> None:
    weight = draw("laplace", 40, 192)
    codes, scale = round_int8(weight)
    assert torch.equal(scale, scale.to(torch.bfloat16).float())
    exact = np.clip(np.round(weight.float().numpy() / scale.numpy()), -128, 127)
    assert np.array_equal(codes.numpy(), exact)


def test_odd_rows_are_safe() -> None:
    weight = torch.zeros(6, 32, dtype=torch.float64)
    weight[1] = 1e-38  # below what a scale can express
    weight[2, 5] = -3.0
    weight[3] = 0.25
    weight[4, 0], weight[5] = 1e30, -1e-20
    for rounder, high in ((round_int8, 127), (round_int4, 7)):
        codes, scale = rounder(weight)
        assert torch.isfinite(scale).all()
        assert (scale > 0).all()
        assert not codes[:2].any()
        back = codes.double() * scale.double()
        assert (back[2:] - weight[2:]).abs().max() <= 1e30 / high
        assert torch.allclose(back[3], weight[3], rtol=0.01)
        assert torch.allclose(back[5], weight[5], rtol=0.01)


def unpack_with_numpy(packed: np.ndarray) -> np.ndarray:
    """Independent of torch: bytes to two's complement nibbles, even rows low."""
    raw = packed.view(np.uint8).astype(int)
    rows = np.empty((2 * raw.shape[0], raw.shape[1]), dtype=int)
    rows[0::2], rows[1::2] = raw % 16, raw // 16
    return np.where(rows >= 8, rows - 16, rows)


def test_packing_is_exact_for_every_pair_of_codes() -> None:
    pairs = torch.cartesian_prod(torch.arange(-8, 8), torch.arange(-8, 8)).to(torch.int8)
    codes = pairs.T.contiguous()
    packed = pack_rows(codes)
    assert packed.shape == (1, 256)
    assert np.array_equal(unpack_with_numpy(packed.numpy()), codes.numpy())
    assert torch.equal(unpack_rows(packed), codes)


def test_packing_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="outside"):
        pack_rows(torch.full((2, 4), 8, dtype=torch.int8))
    with pytest.raises(ValueError, match="even number of rows"):
        pack_rows(torch.zeros(3, 4, dtype=torch.int8))


@pytest.mark.parametrize("is_down", [False, True])
def test_offset_bias_identity(is_down: bool) -> None:
    weight = draw("gaussian", 24, 64)
    codes, scale = round_int4(weight)
    bias = offset_bias(codes, scale, is_down=is_down).numpy()
    products = codes.numpy().astype(float) * scale.numpy().astype(float)
    wanted = 8 * products.reshape(24, 16 if is_down else 1, -1).sum(-1)
    assert bias.shape == wanted.shape
    assert np.allclose(bias, wanted, rtol=1e-6, atol=1e-9)
    # What it is for: x·w = (x - 8)·w + bias for any integer activation.
    x = np.arange(64) % 23 - 11
    full = (x - 8.0) @ products.T + bias.sum(1)
    assert np.allclose(full, x @ products.T, rtol=1e-5, atol=1e-6)
