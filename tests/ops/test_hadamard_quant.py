"""Hadamard rotation with int8 quantisation against the matrix."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from glm5_ascend import ops
from tests.support.compare import assert_identical

hadamard_quant = partial(ops.hadamard_quant, backend="reference")


def matrix() -> np.ndarray:
    """Sylvester's matrix by its definition: the sign of entry (i, j) is the parity of i & j."""
    return np.array([[(-1.0) ** (i & j).bit_count() for j in range(128)] for i in range(128)])


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = x.astype(np.float64) @ matrix() / np.sqrt(128)
    scale = np.abs(y).max(-1) / 127
    return y, scale


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 128), (70, 128), (9, 32, 128), (4, 1, 128), (0, 128)])
def test_equals_the_matrix(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    codes, scale = hadamard_quant(x)
    assert codes.shape == shape
    assert scale.shape == shape[:-1]
    assert scale.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    if not x.numel():
        return
    y, wanted = quantised(x.double().numpy())
    np.testing.assert_allclose(scale.numpy(), wanted, rtol=2e-6)
    quotient = y / wanted[..., None]
    # A code may differ where F32 moves the quotient across a half.
    error = np.abs(codes.numpy() - quotient)
    assert error.max() <= 0.5 + (1e-9 if dtype == torch.float64 else 1e-4)
    assert np.abs(codes.numpy()).max() == 127
    back = codes.double() * scale.double()[..., None] @ torch.from_numpy(matrix()) / 128**0.5
    assert (back - x.double()).abs().max() < 0.1


def test_scores_survive_the_rotation() -> None:
    """(x H) . (y H) / 128 = x . y: what lets queries and keys be rotated alike."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 128, dtype=torch.float64), torch.randn(40, 128, dtype=torch.float64)
    (a, s), (b, t) = hadamard_quant(x), hadamard_quant(y)
    dots = (a.double() @ b.double().T) * s[:, None] * t
    assert (dots - x @ y.T).abs().max() < 0.05 * (x @ y.T).abs().max()


def test_an_outlier_is_spread() -> None:
    x = torch.zeros(1, 128)
    x[0, 5] = 100.0
    codes, scale = hadamard_quant(x)
    assert (codes.abs() == 127).all()
    torch.testing.assert_close(scale, torch.tensor([100 / 128**0.5 / 127]))


def test_zero_tiny_and_infinite_rows() -> None:
    x = torch.zeros(5, 128)
    x[1, 3], x[2, 3], x[3, 3] = torch.nan, torch.inf, 1e-42
    x[4, 0] = 1e-38  # rotated: 9e-40, a scale with few bits
    codes, scale = hadamard_quant(x)
    assert not codes[:3].any()
    assert scale[0] == 0
    assert not torch.isfinite(scale[1:3]).any()
    assert codes.abs().max() <= 127


def test_rows_ignore_the_batch_and_strides() -> None:
    torch.manual_seed(0)
    x = torch.randn(70, 4, 160)[..., 16:144]
    assert not x.is_contiguous()
    codes, scale = hadamard_quant(x)
    for t in (0, 33, 69):
        one, its = hadamard_quant(x[t : t + 1, 2:3].contiguous())
        assert_identical(one[0, 0], codes[t, 2])
        assert_identical(its[0, 0], scale[t, 2])
