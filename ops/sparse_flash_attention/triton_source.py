"""The kernels of triton_kernel.py. Shapes of tiles: BN keys, HB heads, L latent, R rotated dims."""

from __future__ import annotations

import triton
import triton.language as tl

from glm5_ascend.ops.triton.triton_source import dot, flat_rows, narrowed


@triton.jit
def attend_rows(
    q, q_row, q_head, qr, qr_row, qr_head, k, k_row, kr, kr_row, v, v_row, indices, i_row, count,
    which, request, visible, start, table, table_stride, pieces, peaks, sums, scale, n, heads,
    length,
    L: tl.constexpr, LP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, V: tl.constexpr,
    VP: tl.constexpr, SHARED: tl.constexpr, BN: tl.constexpr, HB: tl.constexpr, PAGE: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """One row, HB heads, one part of its positions; ``scale`` includes log2(e).

    SHARED: the first part of the key is the value as well.
    """
    at, part = tl.program_id(0), tl.program_id(2)
    head = tl.program_id(1) * HB + tl.arange(0, HB)
    row = tl.load(which + at)
    owner, seen = tl.load(request + row), tl.load(visible + row)
    first, blocks = tl.load(start + owner), table + owner * table_stride
    some = head < heads
    dim, dim_r, dim_v = tl.arange(0, LP), tl.arange(0, RP), tl.arange(0, VP)
    query = tl.load(
        q + row * q_row + head[None, :] * q_head + dim[:, None],
        mask=some[None, :] & (dim < L)[:, None], other=0.0,
    )  # fmt: skip
    if R > 0:
        rotated = tl.load(
            qr + row * qr_row + head[None, :] * qr_head + dim_r[:, None],
            mask=some[None, :] & (dim_r < R)[:, None], other=0.0,
        )  # fmt: skip
    peak = tl.full((HB,), float("-inf"), tl.float32)
    total = tl.zeros((HB,), tl.float32)
    out = tl.zeros((VP, HB), tl.float32)
    end = tl.minimum(count, (part + 1) * length)
    for begin in range(part * length, end, BN):
        entry = begin + tl.arange(0, BN)
        position = tl.load(indices + row * i_row + entry, mask=entry < end, other=-1)
        used = (position >= 0) & (position < seen)
        flat = flat_rows(position, used, first, blocks, PAGE)
        key = tl.load(
            k + flat[:, None] * k_row + dim[None, :],
            mask=used[:, None] & (dim < L)[None, :], other=0.0,
        )  # fmt: skip
        score = dot(key, query, INTERPRET)
        if R > 0:
            key_r = tl.load(
                kr + flat[:, None] * kr_row + dim_r[None, :],
                mask=used[:, None] & (dim_r < R)[None, :], other=0.0,
            )  # fmt: skip
            score += dot(key_r, rotated, INTERPRET)
        weight, shrink, peak = weights(score * scale, used, peak)
        total = total * shrink + tl.sum(weight, 0)
        if SHARED:
            value = key
        else:
            value = tl.load(
                v + flat[:, None] * v_row + dim_v[None, :],
                mask=used[:, None] & (dim_v < V)[None, :], other=0.0,
            )  # fmt: skip
        out = out * shrink[None, :] + dot(
            tl.trans(value), narrowed(weight, value.dtype, INTERPRET), INTERPRET
        )
    place = (part * n + at) * heads + head
    tl.store(peaks + place, peak, mask=some)
    tl.store(sums + place, total, mask=some)
    tl.store(
        pieces + place[None, :] * V + dim_v[:, None], out,
        mask=some[None, :] & (dim_v < V)[:, None],
    )  # fmt: skip


@triton.jit
def unpack(
    codes, c_row, words, w_row, scales, s_row, indices, i_row, count, request, visible, start,
    table, table_stride, out, positions,
    L: tl.constexpr, R: tl.constexpr, TILE: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """The packed rows that one query row names, one after another, L + R numbers each.

    codes * scale in F32, rounded to BF16. ``positions`` gets the place of each within the row's own
    stretch of ``out``, or -1.
    """
    row = tl.program_id(0).to(tl.int64)
    owner, seen = tl.load(request + row), tl.load(visible + row)
    first, blocks = tl.load(start + owner), table + owner * table_stride
    entry = tl.program_id(1) * BN + tl.arange(0, BN)
    position = tl.load(indices + row * i_row + entry, mask=entry < count, other=-1)
    used = (position >= 0) & (position < seen)
    flat = flat_rows(position, used, first, blocks, PAGE)
    number, dim, dim_r = tl.arange(0, L // TILE), tl.arange(0, L), tl.arange(0, R)
    code = tl.load(codes + flat[:, None] * c_row + dim[None, :], mask=used[:, None], other=0)
    scale = tl.load(
        scales + flat[:, None] * s_row + number[None, :], mask=used[:, None], other=0.0
    )  # fmt: skip
    tiles = tl.reshape(code.to(tl.float32), (BN, L // TILE, TILE)) * scale[:, :, None]
    word = tl.load(words + flat[:, None] * w_row + dim_r[None, :], mask=used[:, None], other=0.0)
    line = out + (row * count + entry)[:, None] * (L + R)
    latent = narrowed(tl.reshape(tiles, (BN, L)), tl.bfloat16, INTERPRET)
    tl.store(line + dim[None, :], latent.to(out.dtype.element_ty), mask=used[:, None])
    tl.store(line + L + dim_r[None, :], word.to(out.dtype.element_ty), mask=used[:, None])
    tl.store(positions + row * count + entry, tl.where(used, entry, -1), mask=entry < count)


@triton.jit
def weights(score, used, peak):
    """(weights [BN, HB], factor of what was summed before, new maximum) of scores in base 2."""
    score = tl.where(used[:, None], score, float("-inf"))
    now = tl.maximum(peak, tl.max(score, 0))
    base = tl.where(now == float("-inf"), 0.0, now)
    return tl.exp2(score - base[None, :]), tl.exp2(peak - base), now


@triton.jit
def combine(
    pieces, peaks, sums, which, out, peak, total, n, heads,
    PARTS: tl.constexpr, PP: tl.constexpr, V: tl.constexpr, VP: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """Add the parts of one row and head; the maximum is returned in the scores' own unit."""
    at, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(which + at)
    part, dim = tl.arange(0, PP), tl.arange(0, VP)
    place = (part * n + at) * heads + head
    there = part < PARTS
    each = tl.load(peaks + place, mask=there, other=float("-inf"))
    largest = tl.max(each, 0)
    factor = tl.exp2(each - tl.where(largest == float("-inf"), 0.0, largest))
    whole = tl.sum(tl.load(sums + place, mask=there, other=0.0) * factor, 0)
    values = tl.load(
        pieces + place[:, None] * V + dim[None, :],
        mask=there[:, None] & (dim < V)[None, :], other=0.0,
    )  # fmt: skip
    mixed = tl.sum(values * factor[:, None], 0) / tl.where(whole == 0.0, 1.0, whole)
    mixed = narrowed(mixed, out.dtype.element_ty, INTERPRET)
    tl.store(out + (row * heads + head) * V + dim, mixed, mask=dim < V)
    tl.store(peak + row * heads + head, largest * 0.6931471805599453)
    tl.store(total + row * heads + head, whole)
