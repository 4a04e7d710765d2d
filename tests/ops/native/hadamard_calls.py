"""Calls of the rotation kernel with the bits that they must return, in NumPy."""

from __future__ import annotations

import numpy as np

from tests.ops.native.calls import Array, Call, Out
from tests.ops.native.numbers import CODES, stored, value

ENTRY = "g5_hadamard_quant"
DTYPES = ("f32", "bf16", "f16")
_GAP = 8


def build(dtype: str, rows: int = 70) -> tuple[Call, tuple[Array, Array]]:
    """(call, (codes, scale)) with rows of zeros, infinities, NaN, tiny and equal numbers."""
    gen = np.random.default_rng(3)
    x = gen.standard_normal((rows, 128)) * 2.0 ** gen.integers(-12, 12, (rows, 1))
    x[0], x[1], x[2] = 0, -0.0, 1
    x[3, 7], x[4, 100], x[5, 3:5] = np.inf, np.nan, [-np.inf, np.inf]
    x[6] = 2.0**-24
    wide = np.zeros((rows, 128 + _GAP))
    wide[:, :128] = x
    data = stored(wide, dtype)
    results = Out(np.int8, (rows, 128)), Out(np.float32, (rows,))
    call = Call(ENTRY, (CODES[dtype], data, 128 + _GAP, rows, *results))
    return call, expected(value(data[:, :128]).astype(np.float32))


def expected(x: Array) -> tuple[Array, Array]:
    """Codes and scales of F32 rows; sums in the order of the fast transform."""
    with np.errstate(invalid="ignore"):
        for bit in range(7):
            a = x.reshape(len(x), -1, 2, 1 << bit)
            x = np.stack([a[:, :, 0] + a[:, :, 1], a[:, :, 0] - a[:, :, 1]], 2)
        y = x.reshape(len(x), 128) * np.float32(128**-0.5)
        scale = np.abs(y).max(1) / np.float32(127)
        codes = y / np.where(scale == 0, np.float32(1), scale)[:, None]
    return np.rint(np.nan_to_num(codes, nan=0.0)).astype(np.int8), scale
