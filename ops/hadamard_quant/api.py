"""Public function of the rotation with int8 quantisation."""

from __future__ import annotations

from torch import Tensor

from glm5_ascend.ops.hadamard_quant import operator


def hadamard_quant(x: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Rotate rows of 128 values by a Hadamard matrix and quantise each to int8.

    y = x H / sqrt(128) with Sylvester's H[i, j] = (-1)^popcount(i & j); scale = max|y| / 127,
    code = y / scale rounded half to even. F32, F64 if x is F64. The additions are those of the
    fast transform, distances 1, 2, 4 .. 64, so every backend has the same bits.

    Args:
        x: float [.., 128] with two or more axes, the last one dense.

    Returns:
        (codes int8 [.., 128] in -127..127, scale F32 or F64 [..]). A row of zeros has scale 0 and
        codes 0; a row with an infinity or NaN has a scale that is not finite and codes 0.

    Raises:
        ArgumentError: another shape, dtype or stride.
        BackendUnavailable: the named backend cannot run here.
    """
    codes, scale = operator.OPERATOR(x, backend=backend)
    return codes, scale
