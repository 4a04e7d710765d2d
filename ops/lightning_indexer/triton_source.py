"""The kernels of triton_kernel.py. Shapes of tiles: BN keys, Q query tokens, H heads, D dims."""

from __future__ import annotations

import triton
import triton.language as tl

from glm5_ascend.ops.triton.triton_source import dot, flat_rows


@triton.jit
def scores(
    q, q_row, q_head, k, k_row, w, w_row, qs, qs_row, ks, ks_row, first, size, request, visible,
    start, table, table_stride, logits, width, length, heads,
    D: tl.constexpr, Q: tl.constexpr, H: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
    QUANT: tl.constexpr, FP8: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Logits of a group of up to Q query tokens of one request over one part of its keys.

    The keys are the rows of the product, all heads of all queries its columns. Keys that a query
    does not see, and NaN, get minus infinity. FP8: e4m3 numbers are F16 numbers, and products of
    F16 are summed in F32, those of e4m3 in fewer bits.
    """
    group = tl.program_id(0)
    begin, many = tl.load(first + group), tl.load(size + group)
    owner = tl.load(request + begin)
    base, blocks = tl.load(start + owner), table + owner * table_stride
    column, dim = tl.arange(0, Q * H), tl.arange(0, D)
    token, head = column // H, column % H
    there = (token < many) & (head < heads)
    query = tl.load(
        q + (begin + token)[None, :] * q_row + head[None, :] * q_head + dim[:, None],
        mask=there[None, :], other=0.0,
    )  # fmt: skip
    if FP8:
        query = query.to(tl.float16)
    weight = tl.load(w + (begin + token) * w_row + head, mask=there, other=0.0).to(tl.float32)
    if QUANT:
        scale = tl.load(qs + (begin + token) * qs_row + head, mask=there, other=0.0)
        weight *= scale.to(tl.float32)
    mine = tl.arange(0, Q)
    seen = tl.load(visible + begin + mine, mask=mine < many, other=0)
    most = tl.max(seen, 0)
    end = tl.minimum(most, (tl.program_id(1) + 1) * length)
    for place in range(tl.program_id(1) * length, end, BN):
        position = place + tl.arange(0, BN)
        used = position < end
        flat = flat_rows(position, used, base, blocks, PAGE)
        key = tl.load(k + flat[:, None] * k_row + dim[None, :], mask=used[:, None], other=0.0)
        if FP8:
            key = key.to(tl.float16)
        product = dot(key, query, INTERPRET)
        # A NaN must stay one: it counts as minus infinity below.
        product = tl.maximum(product, 0.0, propagate_nan=tl.PropagateNan.ALL) * weight[None, :]
        score = tl.sum(tl.reshape(product, (BN, Q, H)), 2)
        if QUANT:
            score *= tl.load(ks + flat * ks_row, mask=used, other=0.0).to(tl.float32)[:, None]
        usable = (position[:, None] < seen[None, :]) & (score == score)
        tl.store(
            logits + (begin + mine)[None, :] * width + position[:, None],
            tl.where(usable, score, float("-inf")),
            mask=used[:, None] & (mine < many)[None, :],
        )  # fmt: skip


@triton.jit
def ordered(score):
    """uint32 that compare as the F32 scores do; both zeros are one."""
    score = tl.where(score == 0.0, 0.0, score)
    bits = score.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def select(
    logits, width, visible, out, count, BN: tl.constexpr, BINS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Ascending positions of the ``count`` greatest scores of one row, the lowest among equals.

    The ``count``-th greatest is found digit by digit, from the top, by counting; then one pass
    writes what is above it and the first of what equals it.
    """
    row = tl.program_id(0).to(tl.int64)
    seen = tl.load(visible + row)
    line, to = logits + row * width, out + row * count
    if seen <= count:
        for place in range(0, count, BN):
            position = place + tl.arange(0, BN)
            value = tl.where(position < seen, position, -1)
            tl.store(to + position, value.to(tl.int32), mask=position < count)
    else:
        known = tl.zeros((), tl.uint32)
        wanted = tl.zeros((), tl.int32) + count
        digit = tl.arange(0, BINS)
        for step in tl.static_range(32 // BITS):
            shift = 32 - BITS * (step + 1)
            histogram = tl.zeros((BINS,), tl.int32)
            for place in range(0, seen, BN):
                position = place + tl.arange(0, BN)
                number = ordered(tl.load(line + position, mask=position < seen, other=0.0))
                inside = position < seen
                if step > 0:
                    inside = inside & ((number >> (shift + BITS)) == known)
                here = ((number >> shift) & (BINS - 1)).to(tl.int32)
                histogram += tl.histogram(here, BINS, mask=inside)
            above = tl.cumsum(histogram, 0, reverse=True)
            best = tl.sum((above >= wanted).to(tl.int32), 0) - 1
            wanted -= tl.sum(tl.where(digit == best, above - histogram, 0), 0)
            known = (known << BITS) | best.to(tl.uint32)
        done = tl.zeros((), tl.int32)
        equals = tl.zeros((), tl.int32)
        for place in range(0, seen, BN):
            position = place + tl.arange(0, BN)
            inside = position < seen
            number = ordered(tl.load(line + position, mask=inside, other=0.0))
            equal = inside & (number == known)
            rank = equals + tl.cumsum(equal.to(tl.int32), 0)
            taken = (inside & (number > known)) | (equal & (rank <= wanted))
            slot = done + tl.cumsum(taken.to(tl.int32), 0) - 1
            tl.store(to + slot, position.to(tl.int32), mask=taken)
            done += tl.sum(taken.to(tl.int32), 0)
            equals += tl.sum(equal.to(tl.int32), 0)
