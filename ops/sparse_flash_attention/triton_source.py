"""The kernels of triton_kernel.py. Shapes of tiles: BN keys, HB heads, L latent, R rotated dims.

``attend_rows`` has the keys on the rows of its products, ``attend_heads`` the heads of up to G
query tokens.
"""

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
def attend_heads(
    q, q_row, q_head, qr, qr_row, qr_head, codes, c_row, scales, s_row, words, w_row, indices,
    i_row, count, members, sizes, group, which, many, request, visible, start, table, table_stride,
    pieces, peaks, sums, scale, n, heads, length,
    T: tl.constexpr, R: tl.constexpr, M: tl.constexpr, G: tl.constexpr, BN: tl.constexpr,
    PAGE: tl.constexpr, PACKED: tl.constexpr, UNITED: tl.constexpr, SPLIT: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """M heads of G query tokens of one request, one part of their positions.

    The latent has 4 T dims. PACKED: it is codes with a scale for T of them, and becomes BF16 here.
    G > 1: ``indices`` and ``members`` are what ``unite`` left of the tokens; a group that it did
    not unite is left out, and with UNITED a token of one that it did. SPLIT as in ``finish``.
    """
    at, part = tl.program_id(0), tl.program_id(2)
    first = tl.load(which + at)
    line, limit, tokens = first, count, 1
    if UNITED:
        size = tl.load(sizes + (tl.load(group + at) if G == 1 else at))
        if (size >= 0) == (G == 1):
            return
        if G > 1:
            line, limit, tokens = at.to(tl.int64), size, tl.load(many + at)
    member = tl.arange(0, M)
    token, head = member // (M // G), tl.program_id(1) * (M // G) + member % (M // G)
    some, row = (token < tokens) & (head < heads), first + token
    owner, seen = tl.load(request + first), tl.load(visible + first)
    base, blocks = tl.load(start + owner), table + owner * table_stride
    dim, dim_r = tl.arange(0, T), tl.arange(0, R)
    to_q = q + (row * q_row + head * q_head)[:, None] + dim[None, :]
    q0 = tl.load(to_q, mask=some[:, None], other=0.0)
    q1 = tl.load(to_q + T, mask=some[:, None], other=0.0)
    q2 = tl.load(to_q + 2 * T, mask=some[:, None], other=0.0)
    q3 = tl.load(to_q + 3 * T, mask=some[:, None], other=0.0)
    rotated = tl.load(
        qr + (row * qr_row + head * qr_head)[:, None] + dim_r[None, :], mask=some[:, None],
        other=0.0,
    )  # fmt: skip
    peak = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    o0 = tl.zeros((M, T), tl.float32)
    o1 = tl.zeros((M, T), tl.float32)
    o2 = tl.zeros((M, T), tl.float32)
    o3 = tl.zeros((M, T), tl.float32)
    begin, end = 0, limit
    if SPLIT:
        begin, end = part * length, tl.minimum(limit, (part + 1) * length)
    indices, members = indices + line * i_row, members + line * i_row
    for place in range(begin, end, BN):
        entry = place + tl.arange(0, BN)
        position = tl.load(indices + entry, mask=entry < end, other=-1)
        used = position >= 0
        if G == 1:
            used = used & (position < seen)
        flat = flat_rows(position, used, base, blocks, PAGE)
        key_r = tl.load(
            words + flat[:, None] * w_row + dim_r[None, :], mask=used[:, None], other=0.0
        )
        score = dot(rotated, tl.trans(key_r), INTERPRET)
        k0 = latents(codes, c_row, scales, s_row, flat, used, 0, T, PACKED, INTERPRET)
        score += dot(q0, tl.trans(k0), INTERPRET)
        k1 = latents(codes, c_row, scales, s_row, flat, used, 1, T, PACKED, INTERPRET)
        score += dot(q1, tl.trans(k1), INTERPRET)
        k2 = latents(codes, c_row, scales, s_row, flat, used, 2, T, PACKED, INTERPRET)
        score += dot(q2, tl.trans(k2), INTERPRET)
        k3 = latents(codes, c_row, scales, s_row, flat, used, 3, T, PACKED, INTERPRET)
        score += dot(q3, tl.trans(k3), INTERPRET)
        if G == 1:
            score = tl.where(used[None, :], score * scale, float("-inf"))
        else:
            have = tl.load(members + entry, mask=entry < end, other=0).to(tl.int32)
            mine = (have[None, :] >> token[:, None]) & 1
            score = tl.where(mine == 1, score * scale, float("-inf"))
        now = tl.maximum(peak, tl.max(score, 1))
        reference = tl.where(now == float("-inf"), 0.0, now)
        weight = tl.exp2(score - reference[:, None])
        shrink = tl.exp2(peak - reference)
        total = total * shrink + tl.sum(weight, 1)
        peak = now
        weight = narrowed(weight, k0.dtype, INTERPRET)
        o0 = o0 * shrink[:, None] + dot(weight, k0, INTERPRET)
        o1 = o1 * shrink[:, None] + dot(weight, k1, INTERPRET)
        o2 = o2 * shrink[:, None] + dot(weight, k2, INTERPRET)
        o3 = o3 * shrink[:, None] + dot(weight, k3, INTERPRET)
    # Not what the loop began with, lest it stay in registers.
    place = first * heads + token * heads + head
    if SPLIT:
        place = (part * n + at) * heads + head
    to = pieces + place[:, None] * (4 * T) + dim[None, :]
    by = 1.0 / tl.where(total == 0.0, 1.0, total)[:, None]
    put(to, o0, by, some, SPLIT, INTERPRET)
    put(to + T, o1, by, some, SPLIT, INTERPRET)
    put(to + 2 * T, o2, by, some, SPLIT, INTERPRET)
    put(to + 3 * T, o3, by, some, SPLIT, INTERPRET)
    tl.store(peaks + place, peak if SPLIT else peak * 0.6931471805599453, mask=some)
    tl.store(sums + place, total, mask=some)


@triton.jit
def put(to, out, by, some, SPLIT: tl.constexpr, INTERPRET: tl.constexpr):
    """Store sums of a part, or results."""
    if not SPLIT:
        out *= by
    tl.store(to, narrowed(out, to.dtype.element_ty, INTERPRET), mask=some[:, None])


@triton.jit
def latents(
    codes, c_row, scales, s_row, flat, used, NUMBER: tl.constexpr, T: tl.constexpr,
    PACKED: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Dims NUMBER * T up to (NUMBER + 1) * T of the key rows ``flat``, zeros where not used.

    Codes are multiplied in F32, which e4m3 reaches through F16: straight to BF16 every number
    would take a slow conversion of its own.
    """
    dim = NUMBER * T + tl.arange(0, T)
    code = tl.load(codes + flat[:, None] * c_row + dim[None, :], mask=used[:, None], other=0.0)
    if not PACKED:
        return code
    scale = tl.load(scales + flat * s_row + NUMBER, mask=used, other=0.0)
    return narrowed(code.to(tl.float32) * scale[:, None], tl.bfloat16, INTERPRET)


@triton.jit
def unite(
    indices, i_row, count, which, many, visible, entries, members, e_row, sizes, share,
    G: tl.constexpr, BN: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The positions that up to G neighbouring query tokens see, each once, and whose they are.

    ``members``: one bit per token. ``sizes``: how many, or -1 where that is more than ``share``
    256ths of those of all tokens, or a token's are not ascending with -1 behind them.
    """
    at = tl.program_id(0).to(tl.int64)
    first, tokens = tl.load(which + at), tl.load(many + at)
    entries, members = entries + at * e_row, members + at * e_row
    size, every, orderly = tl.zeros((), tl.int32), tl.zeros((), tl.int32), tl.full((), 1, tl.int32)
    for token in tl.static_range(G):
        line = indices + (first + token) * i_row
        for place in range(0, tl.where(token < tokens, count, 0), BN):
            entry = place + tl.arange(0, BN)
            position = tl.load(line + entry, mask=entry < count, other=-1)
            after = tl.load(line + entry + 1, mask=entry + 1 < count, other=-1)
            good = (after < 0) | ((position >= 0) & (after > position))
            orderly = tl.minimum(orderly, tl.min(good.to(tl.int32), 0))
            mine = (position >= 0) & (position < tl.load(visible + first + token))
            every += tl.sum(mine.to(tl.int32), 0)
            owned, bits = mine, tl.full((BN,), 1 << token, tl.int32)
            for other in tl.static_range(G):
                if other != token:
                    their = indices + (first + other) * i_row
                    shared = mine & (other < tokens)
                    shared = shared & (position < tl.load(
                        visible + first + other, mask=other < tokens, other=0
                    ))  # fmt: skip
                    shared = shared & holds(their, count, position, shared, STEPS)
                    if other < token:
                        owned = owned & (shared == 0)
                    else:
                        bits = tl.where(shared, bits | (1 << other), bits)
            slot = size + tl.cumsum(owned.to(tl.int32), 0) - 1
            tl.store(entries + slot, position, mask=owned)
            tl.store(members + slot, bits.to(members.dtype.element_ty), mask=owned)
            size += tl.sum(owned.to(tl.int32), 0)
    fits = (orderly == 1) & (size.to(tl.int64) * 256 <= every.to(tl.int64) * share)
    tl.store(sizes + at, tl.where(fits, size, -1))


@triton.jit
def holds(line, count, position, asked, STEPS: tl.constexpr):
    """Whether the ascending positions of ``line``, padded with -1, hold each one ``asked``."""
    low = tl.zeros_like(position)
    left = tl.zeros_like(position) + count
    for _ in range(STEPS):
        middle = low + left // 2
        found = tl.load(line + middle, mask=asked & (left > 0), other=-1)
        below = (left > 0) & (found >= 0) & (found < position)
        low = tl.where(below, middle + 1, low)
        left = tl.where(below, left - left // 2 - 1, left // 2)
    return tl.load(line + low, mask=asked & (low < count), other=-1) == position


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
    code = tl.load(codes + flat[:, None] * c_row + dim[None, :], mask=used[:, None], other=0.0)
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
