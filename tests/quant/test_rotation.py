"""The rotations are orthonormal and equal their formulas; checked in float64 against NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError
from glm5_ascend.quant.folding import SEED, Axis
from glm5_ascend.quant.rotation import (
    hadamard,
    on_columns,
    on_rows,
    paley,
    recycled_state,
    rotations,
    shifted_blocks,
)

CONFIGS = Path(__file__).parents[1] / "data" / "configs"


def sylvester_by_bits(order: int) -> np.ndarray:
    """Entry (i, j) is -1 to the number of ones in ``i & j``."""
    return np.array([[(-1.0) ** (i & j).bit_count() for j in range(order)] for i in range(order)])


def random_rows(count: int, size: int) -> torch.Tensor:
    return torch.randn(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("order", [12, 20])
def test_paley_matrices_are_hadamard(order: int) -> None:
    matrix = paley(order).numpy()
    assert set(np.unique(matrix)) == {-1.0, 1.0}
    assert (matrix @ matrix.T == order * np.eye(order)).all()


@pytest.mark.parametrize("size", [16, 48, 80, 96, 192, 256, 384, 640])
def test_hadamard_equals_its_formula(size: int) -> None:
    odd = next(k for k in (1, 12, 20) if size % k == 0 and (size // k).bit_count() == 1)
    core = paley(odd).numpy() if odd > 1 else np.ones((1, 1))
    signs = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(SEED)) * 2 - 1
    formula = np.kron(core.T, sylvester_by_bits(size // odd)) / np.sqrt(size)
    dense = hadamard("R1", size, SEED).dense().numpy()
    assert np.abs(dense - signs.numpy()[:, None] * formula).max() < 1e-15
    assert np.abs(dense @ dense.T - np.eye(size)).max() < 1e-12


@pytest.mark.parametrize("size", [6144, 2048, 512, 256])
def test_full_size_rotations_keep_products(size: int) -> None:
    """R Rᵀ = I on random rows: every inner product is kept to 1e-12 (msModelSlim: 0.3 % off)."""
    x = random_rows(24, size)
    turned = hadamard("R1", size, SEED).rows(x)
    assert (turned @ turned.T - x @ x.T).abs().max() < 1e-12 * size
    assert (turned - x).abs().max() > 0.5


@pytest.mark.parametrize("size", [32, 96, 2048])
def test_shifted_blocks_are_b_p_b(size: int) -> None:
    turned = shifted_blocks("R2", size, SEED)
    x = random_rows(8, size)
    block = np.kron(np.eye(size // 32), hadamard("B", 32, SEED).dense().numpy())
    shift = np.roll(np.eye(size), 16, axis=1)
    assert np.abs(turned.rows(x).numpy() - x.numpy() @ block @ shift @ block).max() < 1e-12
    product = turned.rows(x) @ turned.rows(x).T
    assert (product - x @ x.T).abs().max() < 1e-12 * size


def test_segments_and_heads_equal_block_diagonal_matrices() -> None:
    matrices = {"R4": hadamard("R4", 16, SEED)}
    axis = Axis(((None, 8), ("R4", 16)), repeat=3)
    head = np.zeros((24, 24))
    head[:8, :8], head[8:, 8:] = np.eye(8), matrices["R4"].dense().numpy()
    dense = np.kron(np.eye(3), head)
    weight = random_rows(5, 72)
    assert axis.size == 72
    columns = on_columns(weight, axis, matrices).numpy()
    assert np.abs(columns - weight.numpy() @ dense).max() < 1e-14
    rows = on_rows(weight.T.contiguous(), axis, matrices).numpy()
    assert np.abs(rows - dense.T @ weight.numpy().T).max() < 1e-14


def test_recycled_state_equals_the_dense_product() -> None:
    r1 = hadamard("R1", 96, SEED)
    gamma = random_rows(1, 96)[0]
    dense = r1.dense().numpy()
    wanted = dense.T @ np.diag(gamma.numpy()) @ dense
    found = recycled_state(gamma, r1)
    assert np.abs(found.numpy() - wanted).max() < 1e-14
    assert torch.equal(found, found.T)


def test_sizes_of_the_published_models_are_supported() -> None:
    for file in sorted(CONFIGS.glob("*.json")):
        raw = json.loads(file.read_text())
        matrices = rotations(Glm5Config.from_dict(raw, source=file.name))
        assert {name: matrix.size for name, matrix in matrices.items()} == {
            "R1": 6144,
            "R2": 2048,
            "R3": 512,
            "R4": 256,
        }


def test_unsupported_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="R1 needs a size of"):
        hadamard("R1", 7 * 32, SEED)
    with pytest.raises(ConfigError, match="multiple of 32"):
        shifted_blocks("R2", 48, SEED)
