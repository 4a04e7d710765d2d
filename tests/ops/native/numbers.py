"""Stored number formats in NumPy, which has no bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Numbers of `enum DType` in g5.h.
CODES = {"f32": 0, "bf16": 1, "f16": 2}


def stored(values: Array, name: str) -> Array:
    """``values`` rounded to a format, as the kernels read it: bf16 as uint16 bits."""
    if name == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    if name == "int8":
        return values.astype(np.int8)
    single = values.astype(np.float32)
    if name == "f32":
        return single
    bits = single.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(single), bits >> 16 | 0x40, rounded).astype(np.uint16)


def value(array: Array) -> Array:
    """F64 values of what :func:`stored` returned."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)
