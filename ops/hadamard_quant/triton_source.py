"""The kernel of triton_kernel.py."""

from __future__ import annotations

import triton
import triton.language as tl

from glm5_ascend.ops.triton.triton_source import int8_codes, largest


@triton.jit
def rotate_quantise(
    x, x_row, codes, scales, count, factor, WIDTH: tl.constexpr, STEPS: tl.constexpr,
    BR: tl.constexpr,
):  # fmt: skip
    """BR rows of WIDTH = 2^STEPS numbers; ``factor`` is F32 1 / sqrt(WIDTH)."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.arange(0, WIDTH)
    there = (row < count)[:, None]
    y = tl.load(x + row[:, None] * x_row + column[None, :], mask=there, other=0.0).to(tl.float32)
    for step in tl.static_range(STEPS):
        y = butterflies(y, BR, WIDTH, 1 << step)
    y = y * factor
    scale = tl.div_rn(largest(y, 1), 127.0)
    number = int8_codes(tl.div_rn(y, tl.where(scale == 0.0, 1.0, scale)[:, None]), -127)
    tl.store(codes + row[:, None] * WIDTH + column[None, :], number, mask=there)
    tl.store(scales + row, scale, mask=row < count)


@triton.jit
def butterflies(x, BR: tl.constexpr, WIDTH: tl.constexpr, DISTANCE: tl.constexpr):
    """a + b and a - b in place of all pairs (a, b) of columns at DISTANCE."""
    pairs = tl.reshape(x, (BR, WIDTH // (2 * DISTANCE), 2, DISTANCE))
    a, b = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2)), (BR, WIDTH))
