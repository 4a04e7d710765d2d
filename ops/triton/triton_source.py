"""Parts of kernels that several operators share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot(a, b, INTERPRET: tl.constexpr):
    """F32 product of two tiles of one dtype; F32 ones are multiplied in F32, not in TF32.

    That of int8 is exact. Triton's interpreter keeps BF16 numbers as 16-bit integers and multiplies
    those, hence the conversion there.
    """
    if INTERPRET:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee").to(tl.float32)


@triton.jit
def flat_rows(position, used, start, table, PAGE: tl.constexpr):
    """Rows of the flattened key tensor for ``position`` of one request, int64.

    ``start`` is the request's first row, ``table`` its row of the block table where PAGE > 0.
    """
    if PAGE > 0:
        block = tl.load(table + position // PAGE, mask=used, other=0).to(tl.int64)
        return block * PAGE + position % PAGE
    return start + position


@triton.jit
def narrowed(x, dtype: tl.constexpr, INTERPRET: tl.constexpr):
    """F32 numbers in ``dtype``, rounded to nearest, ties to even.

    Triton's interpreter cuts the low bits off where the result is BF16, hence the rounding there.
    """
    if INTERPRET and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), 0x7FC00000)
        return (bits & 0xFFFF0000).to(tl.float32, bitcast=True).to(tl.bfloat16)
    return x.to(dtype)


@triton.jit
def largest(x, AXIS: tl.constexpr):
    """max |x| of F32 numbers; NaN where there is one, which ``tl.max`` may pass over."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.max(bits, AXIS).to(tl.float32, bitcast=True)


@triton.jit
def int8_codes(x, LEAST: tl.constexpr):
    """F32 numbers as whole ones from LEAST to 127, ties to even; 0 for NaN."""
    x = tl.minimum(tl.maximum(tl.where(x == x, x, 0.0), LEAST), 127)
    # Beyond 1.5 * 2^23 numbers have no fraction.
    return ((x + 12582912.0) - 12582912.0).to(tl.int8)
