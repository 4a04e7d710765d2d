"""The operators' formulas once more, in NumPy; nothing here uses another part of the package.

Every function computes in ``dtype``: F64 gives the oracle, F32 what a perfect kernel may lose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
PRECISIONS: tuple[Any, Any] = (np.float64, np.float32)


def index_scores(
    query: Array, keys: Array, weights: Array, dtype: Any = np.float64, *, relu: bool = True
) -> Array:
    """[.., L] of query [.., H, D], keys [L, D], weights [.., H], one head after the other."""
    query, keys, weights = (x.astype(dtype, copy=False) for x in (query, keys, weights))
    total = np.zeros((*query.shape[:-2], len(keys)), dtype)
    with np.errstate(invalid="ignore"):
        for h in range(query.shape[-2]):
            dots = query[..., h, :] @ keys.T
            total += weights[..., h, None] * (np.maximum(dots, 0) if relu else dots)
    return total


def best_positions(scores: Array, count: int) -> list[int]:
    """Ascending positions of the ``count`` best; the lower position wins; NaN is the worst."""
    order = np.argsort(-without_nan(scores), kind="stable")
    return sorted(int(i) for i in order[:count])


def without_nan(scores: Array) -> Array:
    """Scores with minus infinity for NaN."""
    return np.where(np.isnan(scores), -np.inf, scores)


def attention(
    query: Array, keys: Array, values: Array, scale: float, dtype: Any = np.float64
) -> tuple[Array, Array, Array]:
    """(out [H, Lv], max [H], sum [H]) of query [H, D] over keys [n, D], values [n, Lv]."""
    query, keys, values = (x.astype(dtype, copy=False) for x in (query, keys, values))
    heads = len(query)
    if not len(keys):
        empty = np.zeros((heads, values.shape[1]), dtype)
        return empty, np.full(heads, -np.inf, dtype), np.zeros(heads, dtype)
    score = dtype(scale) * (query @ keys.T)
    peak = score.max(1)
    weight = np.exp(score - peak[:, None])
    total = weight.sum(1)
    return weight @ values / total[:, None], peak, total


def rotate(x: Array, position: int, theta: float, *, half_split: bool = False) -> Array:
    """Complex product of the pairs (x[2j], x[2j + 1]) with exp(i * position * theta^(-2j / d))."""
    dim = x.shape[-1]
    angle = position * theta ** (-np.arange(0, dim, 2) / dim)
    return turn(x.astype(np.float64), np.exp(1j * angle), half_split=half_split)


def turn(x: Array, by: Array, *, half_split: bool = False) -> Array:
    """Pairs (x[2j], x[2j + 1]) of x [.., d] as complex numbers, times ``by`` [.., d / 2], in place.

    ``half_split`` pairs x[j] with x[j + d / 2] instead, as other models do.
    """
    if half_split:
        half = x.shape[-1] // 2
        turned = (x[..., :half] + 1j * x[..., half:]) * by
        return np.concatenate((turned.real, turned.imag), -1)
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * by
    return np.stack((turned.real, turned.imag), -1).reshape(x.shape)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(eps)) * weight
    return normed


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    normed: Array = centred / np.sqrt(variance + x.dtype.type(eps)) * weight + bias
    return normed


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    product: Array = x / (1 + np.exp(-x))
    return product


def quantise(x: Array) -> tuple[Array, Array]:
    """(codes int64, scale [.., 1]) of every row, symmetric, in the arithmetic of x."""
    scale = np.abs(x).max(-1, keepdims=True) / x.dtype.type(127)
    return np.rint(x / np.where(scale == 0, 1, scale)).astype(np.int64), scale


def hadamard(size: int) -> Array:
    """Orthonormal Sylvester matrix [size, size] in F64, natural order."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    normal: Array = matrix / np.sqrt(size)
    return normal
