"""The kernels of triton_kernel.py, one program per token."""

from __future__ import annotations

import triton
import triton.language as tl

from glm5_ascend.ops.triton.triton_source import int8_codes, largest, narrowed


@triton.jit
def write_rows(cache, cache_row, rows, row_stride, slots, width, BN: tl.constexpr):
    """BN numbers of one row, as they are, into the slot of its token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    value = tl.load(rows + token * row_stride + column, mask=column < width, other=0)
    tl.store(cache + slot * cache_row + column, value, mask=(column < width) & (slot >= 0))


@triton.jit
def write_packed(
    cache, cache_row, latent, latent_row, rope, rope_row, slots,
    L: tl.constexpr, TILE: tl.constexpr, R: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Pack one latent [L] and one rotated key [R]."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    line = cache + slot * cache_row
    value = tl.load(latent + token * latent_row + tl.arange(0, L)).to(tl.float32)
    turned = tl.load(rope + token * rope_row + tl.arange(0, R)).to(tl.float32)
    store_latent(line, value, slot >= 0, L, TILE, 2 * R)
    store_rope(line + L, turned, slot >= 0, R, INTERPRET)


@triton.jit
def read_packed(
    cache, cache_row, slots, latent, rope,
    L: tl.constexpr, TILE: tl.constexpr, R: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """BF16 latent and the bits of the BF16 rotated key of one slot; zeros where there is none."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    line, there = cache + slot * cache_row, slot >= 0
    dim, word, tile = tl.arange(0, L), tl.arange(0, R), tl.arange(0, L // TILE)
    scale = tl.zeros((L // TILE,), tl.int32)
    turned = tl.zeros((R,), tl.int32)
    for byte in tl.static_range(4):
        part = tl.load(line + L + 2 * R + 4 * tile + byte, mask=there, other=0)
        scale |= (part.to(tl.int32) & 0xFF) << (8 * byte)
    for byte in tl.static_range(2):
        part = tl.load(line + L + 2 * word + byte, mask=there, other=0)
        turned |= (part.to(tl.int32) & 0xFF) << (8 * byte)
    code = tl.reshape(tl.load(line + dim, mask=there, other=0).to(tl.float32), (L // TILE, TILE))
    value = tl.reshape(code * scale.to(tl.float32, bitcast=True)[:, None], (L,))
    tl.store(latent + token * L + dim, narrowed(value, tl.bfloat16, INTERPRET))
    tl.store(rope + token * R + word, turned.to(tl.int16))


@triton.jit
def store_latent(line, value, there, L: tl.constexpr, TILE: tl.constexpr, GAP: tl.constexpr):
    """int8 codes of F32 value [L] at ``line``, and after GAP more bytes one F32 scale per TILE.

    Written byte by byte: the distance of the rows need not be a multiple of four.
    """
    tiles = tl.reshape(value, (L // TILE, TILE))
    scale = tl.div_rn(largest(tiles, 1), 127.0)
    codes = int8_codes(tl.div_rn(tiles, tl.where(scale == 0.0, 1.0, scale)[:, None]), -127)
    tl.store(line + tl.arange(0, L), tl.reshape(codes, (L,)), mask=there)
    word = scale.to(tl.int32, bitcast=True)
    low, high = tl.join(word, word >> 16), tl.join(word >> 8, word >> 24)
    number: tl.constexpr = 4 * (L // TILE)
    at = line + L + GAP + tl.arange(0, number)
    tl.store(at, tl.reshape(tl.join(low, high), (number,)).to(tl.int8), mask=there)


@triton.jit
def store_rope(line, value, there, R: tl.constexpr, INTERPRET: tl.constexpr):
    """F32 value [R] as BF16 at ``line``, byte by byte."""
    word = narrowed(value, tl.bfloat16, INTERPRET).to(tl.int16, bitcast=True).to(tl.int32)
    both = tl.reshape(tl.join(word, word >> 8), (2 * R,))
    tl.store(line + tl.arange(0, 2 * R), both.to(tl.int8), mask=there)
