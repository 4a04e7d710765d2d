"""The products of triton_kernel.py.

Weights lie on the rows of every product and tokens on its columns, so that one token, too, takes
warp group products. Tiles: BM columns of a weight, BT tokens, BK terms of the sums.

PDL: a kernel may start while the one before it runs. Until ``gdc_wait`` it touches nothing but
weights, which it asks into the L2 cache.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from glm5_ascend.ops.mlapo.triton_source import coded, larger
from glm5_ascend.ops.triton.triton_source import dot, largest, narrowed


@triton.jit
def project(
    x, x_row, x_point, x_offset, x_scale, w, w_row, w2, w2_row, w_col, columns, columns2, scale,
    scale2, bias, bias2, out, tokens, terms, part,
    QUANTISE: tl.constexpr, INT8: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr,
    SPLIT: tl.constexpr, BM: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr,
    PDL: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """[x W | x W2] of BM columns and BT tokens, weights [columns, terms].

    QUANTISE: 0 = x are codes or weights are float, 1 = x is quantised here per token, 2 = here with
    the stored scale and offset. SPLIT: the sums of ``part`` terms, as they are, into
    out [parts, tokens, columns + columns2]; else all of them, finished, into out [tokens, ..].
    SCALED: tokens have scales. BX: terms that a step of the search for these scales reads.
    """
    if PDL:
        gdc_launch_dependents()
    tile, which = tl.program_id(0), tl.program_id(2)
    tiles = tl.cdiv(columns, BM)
    second = tile >= tiles
    column = tl.where(second, tile - tiles, tile) * BM + tl.arange(0, BM)
    used = column < tl.where(second, columns2, columns)
    before = tl.where(second, columns, 0)
    token = tl.program_id(1) * BT + tl.arange(0, BT)
    there = token < tokens
    line = x + token.to(tl.int64)[None, :] * x_row
    weight_row = tl.where(second, w2_row, w_row).to(tl.int64)
    weight = tl.where(second, w2, w) + tl.where(used, column, 0)[:, None] * weight_row
    begin, end = which * part, tl.minimum(terms, (which + 1) * part)
    if PDL:
        ask(weight, w_col, begin, end)
        gdc_wait()
    own = tl.zeros((BT,), tl.float32)
    if QUANTISE == 1:
        own = row_scales(x, x_row, token, tokens, terms, BT, BX)
        if (tile == 0) & (which == 0):
            tl.store(x_scale + token, own, mask=there)
    total = tl.zeros((BM, BT), tl.int32 if INT8 else tl.float32)
    if SPLIT or INT8:
        total = add_products(
            total, weight, w_col, line, used, there, begin, end, own, x_point, x_offset,
            QUANTISE, INT8, BK, INTERPRET,
        )  # fmt: skip
    else:
        # The parts are added in the order in which ``latents`` adds them.
        for start in range(0, terms, part):
            zero = tl.zeros((BM, BT), tl.float32)
            total += add_products(
                zero, weight, w_col, line, used, there, start, tl.minimum(terms, start + part),
                own, x_point, x_offset, QUANTISE, INT8, BK, INTERPRET,
            )  # fmt: skip
    row = which.to(tl.int64) * tokens + token
    place = out + row[None, :] * (columns + columns2) + (before + column)[:, None]
    if INT8 and not SPLIT:
        if BIAS:
            each = tl.where(second, bias2, bias) + column
            total += tl.load(each, mask=used, other=0)[:, None]
        factor = tl.load(tl.where(second, scale2, scale) + column, mask=used, other=0.0)
        result = total.to(tl.float32) * factor[:, None]
        if SCALED:
            result *= tl.load(x_scale + token, mask=there, other=0.0)[None, :]
        result = narrowed(result, out.dtype.element_ty, INTERPRET)
    elif SPLIT:
        result = total
    else:
        result = narrowed(total, out.dtype.element_ty, INTERPRET)
    tl.store(place, result, mask=used[:, None] & there[None, :])


@triton.jit
def row_scales(x, x_row, token, tokens, terms, BT: tl.constexpr, BX: tl.constexpr):
    """F32 [BT]: max |x| / 127 of the first rows, one after the other."""
    scales = tl.zeros((BT,), tl.float32)
    for row in range(0, tokens):
        peak = tl.zeros((BX,), tl.float32)
        for first in range(0, terms, BX):
            term = first + tl.arange(0, BX)
            part = tl.load(x + row * x_row + term, mask=term < terms, other=0.0)
            peak = larger(peak, part.to(tl.float32))
        scales = tl.where(token == row, tl.div_rn(largest(peak, 0), 127.0), scales)
    return scales


@triton.jit
def add_products(
    total, weight, w_col, line, used, there, begin, end, own, x_point, x_offset,
    QUANTISE: tl.constexpr, INT8: tl.constexpr, BK: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """``total`` and the products of the terms from ``begin`` to ``end``."""
    for first in range(begin, end, BK):
        term = first + tl.arange(0, BK)
        some = term < end
        a = tl.load(weight + term[None, :] * w_col, mask=used[:, None] & some[None, :], other=0)
        b = tl.load(line + term[:, None], mask=some[:, None] & there[None, :], other=0)
        if QUANTISE > 0:
            b = coded(b.to(tl.float32), own[None, :], x_point, x_offset, QUANTISE == 2)
        if INT8:
            total = tl.dot(a, b, total, out_dtype=tl.int32)
        else:
            total += dot(a, b, INTERPRET)
    return total


@triton.jit
def heads(
    q, q_row, w, w_head, w_row, w_col, cos, cos_row, sin, sin_row, query, rope, tokens, number,
    D: tl.constexpr, L: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, BM: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Of one head and BT tokens: BM columns of nope times w [D, L], or the rotated part.

    q: [tokens, heads * (D + R)]; query: [tokens, heads, L]; rope: [tokens, heads, R].
    """
    if PDL:
        gdc_launch_dependents()
    head, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = tl.program_id(2).to(tl.int64) * BT + tl.arange(0, BT)
    there = token < tokens
    line = q + token * q_row + head * (D + R)
    if tile == tl.cdiv(L, BM):
        if PDL:
            gdc_wait()
        target = rope + (token * number + head) * R
        turn(line + D, cos + token * cos_row, sin + token * sin_row, target, there, BT, R, RP,
             INTERPRET)  # fmt: skip
    else:
        column = tile * BM + tl.arange(0, BM)
        used = column < L
        weight = w + head * w_head + column[None, :] * w_col
        if PDL:
            ask_rows(w + head * w_head, w_row, w_col, tile * BM, L, D, BM, BK)
            gdc_wait()
        total = tl.zeros((BM, BT), tl.float32)
        for first in range(0, D, BK):
            term = first + tl.arange(0, BK)
            some = term < D
            a = tl.load(
                weight + term[:, None] * w_row, mask=some[:, None] & used[None, :], other=0.0
            )  # fmt: skip
            b = tl.load(
                line[None, :] + term[:, None], mask=some[:, None] & there[None, :], other=0.0
            )  # fmt: skip
            total += dot(tl.trans(a), b, INTERPRET)
        place = query + (token * number + head)[None, :] * L + column[:, None]
        mask = used[:, None] & there[None, :]
        tl.store(place, narrowed(total, query.dtype.element_ty, INTERPRET), mask=mask)


@triton.jit
def turn(
    line, cos, sin, place, there,
    BT: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Turn the pairs of BT rows [R] at ``line`` into those at ``place``."""
    column, pair = tl.arange(0, RP), tl.arange(0, RP // 2)
    mask = there[:, None] & (column < R)[None, :]
    known = there[:, None] & (pair < R // 2)[None, :]
    x = tl.load(line[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    c = tl.load(cos[:, None] + pair[None, :], mask=known, other=0.0).to(tl.float32)
    s = tl.load(sin[:, None] + pair[None, :], mask=known, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, (BT, RP // 2, 2)))
    x = tl.reshape(tl.join(even * c - odd * s, odd * c + even * s), (BT, RP))
    target = place[:, None] + column[None, :]
    tl.store(target, narrowed(x, target.dtype.element_ty, INTERPRET), mask=mask)


@triton.jit
def ask(weight, w_col, begin, end):
    """Bring the first KiB of weight rows from ``begin`` on into the L2 cache.

    A kernel's programs together ask for what memory delivers while they wait, not for more than
    the cache holds.
    """
    line: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
    term = tl.minimum(begin + line * tl.arange(0, 8), end - 1)
    prefetch(weight + term[None, :] * w_col)


@triton.jit
def ask_rows(
    weight, w_row, w_col, first, L: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Bring BM columns from ``first`` on of a weight [D, L] into the L2 cache."""
    line: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
    column = tl.minimum(first + line * tl.arange(0, BM // line), L - 1)
    for begin in range(0, D, BK):
        term = tl.minimum(begin + tl.arange(0, BK), D - 1)
        prefetch(weight + term[:, None] * w_row + column[None, :] * w_col)


@triton.jit
def prefetch(pointer):
    """Bring the lines of all addresses into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointer.to(tl.int64)], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip
