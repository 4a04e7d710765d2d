"""What one H200 can do at most: the rates that floors are computed from, each with its source."""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """``value`` per second in bytes, or in multiplications plus additions."""

    value: float
    source: str


MEMORY = Rate(4.3e12, "copy of device memory, bytes read plus written, measured on one card")
PRODUCTS = {
    "bf16": Rate(798e12, "greatest BF16 GEMM on random data, measured on one card"),
    "fp8": Rate(1979e12, "data sheet, dense"),
    "int8": Rate(1979e12, "data sheet, dense"),
}
L2_BYTES = 60 << 20
