"""NumPy models of data movement, products and conversions, from their documented meaning."""

from __future__ import annotations

import numpy as np

SIZES = {"int8": 1, "uint8": 1, "half": 2, "bf16": 2, "float": 4, "int32": 4}


def dtype(name: str) -> np.dtype:
    """How ``name`` is stored; bf16 as its bits."""
    kinds = {"half": np.float16, "bf16": np.uint16, "float": np.float32}
    return np.dtype(kinds.get(name, name))


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Nearest bf16, ties to even."""
    import torch

    return torch.from_numpy(np.asarray(values, np.float32)).bfloat16().view(torch.uint16).numpy()


def bf16_values(bits: np.ndarray) -> np.ndarray:
    """Exact float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def random_values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Stored values of any size that has no NaN."""
    if name in ("int8", "uint8", "int32"):
        info = np.iinfo(name)
        return rng.integers(info.min, info.max + 1, shape, dtype=name)
    values = rng.standard_normal(shape).astype(np.float32)
    return bf16_bits(values) if name == "bf16" else values.astype(dtype(name))


def plain(stored: np.ndarray, name: str) -> np.ndarray:
    """Stored values as numbers that NumPy multiplies exactly enough: float64 or int64."""
    if name == "bf16":
        return bf16_values(stored).astype(np.float64)
    return stored.astype(np.float64 if stored.dtype.kind == "f" else np.int64)


def pad_to(matrix: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """With zeros up to multiples of ``rows`` and ``columns``."""
    down, across = -matrix.shape[0] % rows, -matrix.shape[1] % columns
    return np.pad(matrix, ((0, down), (0, across)))


def nz(matrix: np.ndarray, c0: int) -> np.ndarray:
    """[columns / C0][rows][C0] of a matrix whose sizes are multiples of 16 and C0."""
    rows, columns = matrix.shape
    return np.ascontiguousarray(matrix.reshape(rows, columns // c0, c0).transpose(1, 0, 2))


def zz(matrix: np.ndarray, c0: int) -> np.ndarray:
    """[rows / 16][columns / C0][16][C0]."""
    rows, columns = matrix.shape
    blocks = matrix.reshape(rows // 16, 16, columns // c0, c0)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))


def zn(matrix: np.ndarray, c0: int) -> np.ndarray:
    """[k / C0][n / 16][16 of n][C0 of k] of a matrix [k][n]."""
    k, n = matrix.shape
    blocks = matrix.reshape(k // c0, c0, n // 16, 16)
    return np.ascontiguousarray(blocks.transpose(0, 2, 3, 1))


def from_l0c(image: np.ndarray, m: int, n: int) -> np.ndarray:
    """Rows and columns that count of [n / 16][rows][16]."""
    rows = -(-m // 16) * 16
    blocks = image.ravel()[: -(-n // 16) * rows * 16].reshape(-1, rows, 16)
    return blocks.transpose(1, 0, 2).reshape(rows, -1)[:m, :n]


def to_l0c(matrix: np.ndarray, rows: int) -> np.ndarray:
    """[n / 16][rows][16], zero beyond the matrix."""
    m, n = matrix.shape
    full = np.zeros((rows, -(-n // 16) * 16), matrix.dtype)
    full[:m, :n] = matrix
    return np.ascontiguousarray(full.reshape(rows, -1, 16).transpose(1, 0, 2))


def pack_int4(values: np.ndarray) -> np.ndarray:
    """Two values in a byte along the last axis, the first one low."""
    pairs = values.astype(np.uint8).reshape(*values.shape[:-1], -1, 2) & 15
    return pairs[..., 0] | pairs[..., 1] << 4
