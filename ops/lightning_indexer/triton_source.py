"""The kernels of triton_kernel.py. Shapes of tiles: BN keys, Q query tokens, H heads, D dims.

``scores`` and ``select`` work on a matrix of logits. ``sample``, ``bounds``, ``keep`` and
``choose`` do without: a sample of a row's keys gives a bound that somewhat more than ``count`` keys
reach, only those are kept, and the best of them are the best of all. Where fewer or too many reach
it, ``choose`` says so, and the first two kernels find the row's keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glm5_ascend.ops.triton.triton_source import dot, flat_rows


@triton.jit
def scores(
    q, q_row, q_head, k, k_row, w, w_row, qs, qs_row, ks, ks_row, first, size, request, visible,
    start, table, table_stride, wanted, logits, width, length, heads,
    D: tl.constexpr, Q: tl.constexpr, H: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
    QUANT: tl.constexpr, FP8: tl.constexpr, SOME: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Logits of a group of up to Q query tokens of one request over one part of its keys.

    The keys are the rows of the product, all heads of all queries its columns. Keys that a query
    does not see, and NaN, get minus infinity. SOME: only groups with a token whose ``wanted`` is
    not 0.
    """
    group = tl.program_id(0)
    begin, many = tl.load(first + group), tl.load(size + group)
    mine = tl.arange(0, Q)
    if SOME:  # noqa: SIM102
        if tl.max(tl.load(wanted + begin + mine, mask=mine < many, other=0), 0) == 0:
            return
    owner = tl.load(request + begin)
    base, blocks = tl.load(start + owner), table + owner * table_stride
    query, weight = columns(
        q, q_row, q_head, w, w_row, qs, qs_row, begin, many, heads, D, Q, H, QUANT, FP8
    )
    seen = tl.load(visible + begin + mine, mask=mine < many, other=0)
    end = tl.minimum(tl.max(seen, 0), (tl.program_id(1) + 1) * length)
    for place in range(tl.program_id(1) * length, end, BN):
        position = place + tl.arange(0, BN)
        used = position < end
        score = tile(
            query, weight, k, k_row, ks, ks_row, flat_rows(position, used, base, blocks, PAGE),
            used, D, Q, H, BN, QUANT, FP8, INTERPRET,
        )  # fmt: skip
        usable = (position[:, None] < seen[None, :]) & (score == score)
        tl.store(
            logits + (begin + mine)[None, :] * width + position[:, None],
            tl.where(usable, score, float("-inf")),
            mask=used[:, None] & (mine < many)[None, :],
        )  # fmt: skip


@triton.jit
def columns(
    q, q_row, q_head, w, w_row, qs, qs_row, begin, many, heads,
    D: tl.constexpr, Q: tl.constexpr, H: tl.constexpr, QUANT: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """(query [D, Q H], weight F32 [Q H]) of the tokens from ``begin`` on; zeros for what is not.

    FP8: e4m3 numbers are F16 numbers, and the tensor cores sum products of F16 in F32, those of
    e4m3 in fewer bits.
    """
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
    return query, weight


@triton.jit
def tile(
    query, weight, k, k_row, ks, ks_row, flat, used,
    D: tl.constexpr, Q: tl.constexpr, H: tl.constexpr, BN: tl.constexpr, QUANT: tl.constexpr,
    FP8: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """F32 scores [BN, Q] of the key rows ``flat``."""
    dim = tl.arange(0, D)
    key = tl.load(k + flat[:, None] * k_row + dim[None, :], mask=used[:, None], other=0.0)
    if FP8:
        key = key.to(tl.float16)
    product = dot(key, query, INTERPRET)
    # A NaN must stay one: it counts as minus infinity.
    product = tl.maximum(product, 0.0, propagate_nan=tl.PropagateNan.ALL) * weight[None, :]
    score = tl.sum(tl.reshape(product, (BN, Q, H)), 2)
    if QUANT:
        score *= tl.load(ks + flat * ks_row, mask=used, other=0.0).to(tl.float32)[:, None]
    return score


@triton.jit
def ordered(score):
    """uint32 that compare as the F32 scores do; both zeros are one."""
    score = tl.where(score == 0.0, 0.0, score)
    bits = score.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def select(
    logits, width, visible, wanted, out, count, BN: tl.constexpr, BINS: tl.constexpr,
    BITS: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """Ascending positions of the ``count`` greatest scores of one row, the lowest among equals.

    The ``count``-th greatest is found digit by digit, from the top, by counting; then one pass
    writes what is above it and the first of what equals it. SOME: only rows whose ``wanted`` is
    not 0.
    """
    row = tl.program_id(0).to(tl.int64)
    if SOME:  # noqa: SIM102
        if tl.load(wanted + row) == 0:
            return
    seen = tl.load(visible + row).to(tl.int32)
    line, to = logits + row * width, out + row * count
    if seen <= count:
        for place in range(0, count, BN):
            position = place + tl.arange(0, BN)
            value = tl.where(position < seen, position, -1)
            tl.store(to + position, value.to(tl.int32), mask=position < count)
    else:
        known = tl.zeros((), tl.uint32)
        missing = tl.zeros((), tl.int32) + count
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
            best = tl.sum((above >= missing).to(tl.int32), 0) - 1
            missing -= tl.sum(tl.where(digit == best, above - histogram, 0), 0)
            known = (known << BITS) | best.to(tl.uint32)
        done = tl.zeros((), tl.int32)
        equals = tl.zeros((), tl.int32)
        for place in range(0, seen, BN):
            position = place + tl.arange(0, BN)
            inside = position < seen
            number = ordered(tl.load(line + position, mask=inside, other=0.0))
            equal = inside & (number == known)
            rank = equals + tl.cumsum(equal.to(tl.int32), 0)
            taken = (inside & (number > known)) | (equal & (rank <= missing))
            slot = done + tl.cumsum(taken.to(tl.int32), 0) - 1
            tl.store(to + slot, position.to(tl.int32), mask=taken)
            done += tl.sum(taken.to(tl.int32), 0)
            equals += tl.sum(equal.to(tl.int32), 0)


@triton.jit
def sample(
    q, q_row, q_head, k, k_row, w, w_row, qs, qs_row, ks, ks_row, first, size, request, visible,
    start, table, table_stride, samples, count, heads,
    D: tl.constexpr, Q: tl.constexpr, H: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
    QUANT: tl.constexpr, FP8: tl.constexpr, SAMPLES: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Scores of BN of the SAMPLES keys of a group's sample, one of each stretch of equal length."""
    group = tl.program_id(0)
    begin, many = tl.load(first + group), tl.load(size + group)
    mine = tl.arange(0, Q)
    seen = tl.load(visible + begin + mine, mask=mine < many, other=0)
    most = tl.max(seen, 0)
    if most <= count:
        return
    number = tl.program_id(1) * BN + tl.arange(0, BN)
    low = number.to(tl.int64) * most // SAMPLES
    # Any place in the stretch, lest a period of the keys be that of the sample.
    mixed = ((number.to(tl.uint32) * 2654435761) >> 8).to(tl.int64)
    position = low + mixed % tl.maximum(most // SAMPLES, 1)
    owner = tl.load(request + begin)
    base, blocks = tl.load(start + owner), table + owner * table_stride
    query, weight = columns(
        q, q_row, q_head, w, w_row, qs, qs_row, begin, many, heads, D, Q, H, QUANT, FP8
    )
    used = position < most
    score = tile(
        query, weight, k, k_row, ks, ks_row, flat_rows(position, used, base, blocks, PAGE), used,
        D, Q, H, BN, QUANT, FP8, INTERPRET,
    )  # fmt: skip
    usable = (position[:, None] < seen[None, :]) & (score == score)
    tl.store(
        samples + (begin + mine)[None, :] * SAMPLES + number[:, None],
        tl.where(usable, score, float("-inf")), mask=(mine < many)[None, :],
    )  # fmt: skip


@triton.jit
def nth(number, inside, missing, BINS: tl.constexpr, BITS: tl.constexpr):
    """(the ``missing``-th greatest of a block of uint32, how many of its equals are among them)."""
    known = tl.zeros((), tl.uint32)
    digit = tl.arange(0, BINS)
    for step in tl.static_range(32 // BITS):
        shift = 32 - BITS * (step + 1)
        left = inside
        if step > 0:
            left = left & ((number >> (shift + BITS)) == known)
        here = ((number >> shift) & (BINS - 1)).to(tl.int32)
        histogram = tl.histogram(here, BINS, mask=left)
        above = tl.cumsum(histogram, 0, reverse=True)
        best = tl.sum((above >= missing).to(tl.int32), 0) - 1
        missing -= tl.sum(tl.where(digit == best, above - histogram, 0), 0)
        known = (known << BITS) | best.to(tl.uint32)
    return known, missing


@triton.jit
def bounds(
    samples, visible, bound, count,
    SAMPLES: tl.constexpr, BINS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The score, as ``ordered`` has it, that more than ``count`` of a row's keys should reach.

    The sample's share of them, four standard deviations and eight: fewer keys are rare.
    """
    row = tl.program_id(0).to(tl.int64)
    seen = tl.load(visible + row)
    if seen > count:
        share = count * (1.0 * SAMPLES) / seen.to(tl.float32)
        rank = (share + 4.0 * tl.sqrt(share) + 8.0).to(tl.int32)
        each = tl.arange(0, SAMPLES)
        number = ordered(tl.load(samples + row * SAMPLES + each))
        found, _ = nth(number, each >= 0, tl.minimum(rank, SAMPLES), BINS, BITS)
        # A sample that is nearly all of the keys bounds nothing.
        tl.store(bound + row, tl.where(rank < SAMPLES, found, 0).to(tl.int32, bitcast=True))


@triton.jit
def keep(
    q, q_row, q_head, k, k_row, w, w_row, qs, qs_row, ks, ks_row, first, size, request, visible,
    start, table, table_stride, bound, values, positions, fills, width, length, count, heads,
    D: tl.constexpr, Q: tl.constexpr, H: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
    QUANT: tl.constexpr, FP8: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Ordered scores and positions of what reaches the bound, a group and a part of its keys.

    A part has as much room as keys, so that none is lost here; ``fills`` says what it used.
    """
    group, part = tl.program_id(0), tl.program_id(1)
    begin, many = tl.load(first + group), tl.load(size + group)
    mine = tl.arange(0, Q)
    some, row = mine < many, begin + mine
    seen = tl.load(visible + row, mask=some, other=0)
    owner = tl.load(request + begin)
    base, blocks = tl.load(start + owner), table + owner * table_stride
    query, weight = columns(
        q, q_row, q_head, w, w_row, qs, qs_row, begin, many, heads, D, Q, H, QUANT, FP8
    )
    # Rows that keep every key need no scores.
    seen = tl.where(seen > count, seen, 0)
    least = tl.load(bound + row, mask=some, other=0).to(tl.uint32, bitcast=True)
    fill = tl.zeros((Q,), tl.int32)
    end = tl.minimum(tl.max(seen, 0), (part + 1) * length)
    for place in range(part * length, end, BN):
        position = place + tl.arange(0, BN)
        used = position < end
        score = tile(
            query, weight, k, k_row, ks, ks_row, flat_rows(position, used, base, blocks, PAGE),
            used, D, Q, H, BN, QUANT, FP8, INTERPRET,
        )  # fmt: skip
        number = ordered(tl.where(score == score, score, float("-inf")))
        kept = (position[:, None] < seen[None, :]) & (number >= least[None, :])
        slot = fill[None, :] + tl.cumsum(kept.to(tl.int32), 0) - 1
        at = row[None, :] * width + part * length + slot
        tl.store(values + at, number.to(tl.int32, bitcast=True), mask=kept)
        tl.store(positions + at, position[:, None].to(tl.int32), mask=kept)
        fill += tl.sum(kept.to(tl.int32), 0)
    tl.store(fills + row * tl.num_programs(1) + part, fill, mask=some)


@triton.jit
def choose(
    values, positions, fills, visible, out, wanted, width, length, parts, count,
    PARTS: tl.constexpr, ROOM: tl.constexpr, BN: tl.constexpr, BINS: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """The best of what was kept of a row, as ``select``; ``wanted`` is 1 where that does not do.

    Parts lie in the order of their keys, and so do what they kept.
    """
    row = tl.program_id(0).to(tl.int64)
    seen, to = tl.load(visible + row), out + row * count
    if seen <= count:
        for place in range(0, count, BN):
            position = place + tl.arange(0, BN)
            value = tl.where(position < seen, position, -1)
            tl.store(to + position, value.to(tl.int32), mask=position < count)
        tl.store(wanted + row, 0)
    else:
        part = tl.arange(0, PARTS)
        fill = tl.load(fills + row * parts + part, mask=part < parts, other=0)
        ends = tl.cumsum(fill, 0)
        every = tl.sum(fill, 0)
        if (every < count) | (every > ROOM):
            tl.store(wanted + row, 1)
        else:
            slot = tl.arange(0, ROOM)
            # How many parts end at or before each slot.
            whose = tl.cumsum(tl.histogram(ends, ROOM, mask=ends < ROOM), 0)
            whose = tl.minimum(whose, PARTS - 1)
            inside = slot < every
            at = whose * length + slot - tl.gather(ends - fill, whose, 0)
            number = tl.load(values + row * width + at, mask=inside, other=0)
            number = number.to(tl.uint32, bitcast=True)
            known, missing = nth(number, inside, count, BINS, BITS)
            equal = inside & (number == known)
            rank = tl.cumsum(equal.to(tl.int32), 0)
            taken = (inside & (number > known)) | (equal & (rank <= missing))
            position = tl.load(positions + row * width + at, mask=taken, other=0)
            tl.store(to + tl.cumsum(taken.to(tl.int32), 0) - 1, position, mask=taken)
            tl.store(wanted + row, 0)
