"""The kernels of triton_kernel.py that take a row each; triton_products.py has the others."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from glm5_ascend.ops.paged_cache.triton_source import store_latent, store_rope
from glm5_ascend.ops.triton.triton_source import int8_codes, largest, narrowed


@triton.jit
def quantise(
    x, x_row, point, offset, codes, scales, width,
    STATIC: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """int8 codes of one row; static, or with the row's own scale, which is stored."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BN)
    peak = tl.zeros((BN,), tl.float32)
    if not STATIC:
        for first in range(0, width, BN):
            some = first + column < width
            part = tl.load(x + row * x_row + first + column, mask=some, other=0.0).to(tl.float32)
            peak = larger(peak, part)
        tl.store(scales + row, tl.div_rn(largest(peak, 0), 127.0))
    scale = tl.div_rn(largest(peak, 0), 127.0)
    for first in range(0, width, BN):
        some = first + column < width
        part = tl.load(x + row * x_row + first + column, mask=some, other=0.0).to(tl.float32)
        number = coded(part, scale, point, offset, STATIC)
        tl.store(codes + row * width + first + column, number, mask=some)


@triton.jit
def larger(peak, x):
    """The larger one of ``peak`` and |x|, NaN if either is."""
    bits = tl.maximum(peak.to(tl.int32, bitcast=True), x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def coded(x, scale, point, offset, STATIC: tl.constexpr):
    """int8 codes of F32 x, with ``scale`` of the rows or the scale and offset stored for all."""
    if STATIC:
        shifted = tl.div_rn(x, tl.load(point).to(tl.float32)) + tl.load(offset).to(tl.float32)
        return int8_codes(shifted, -128)
    return int8_codes(tl.div_rn(x, tl.where(scale == 0.0, 1.0, scale)), -127)


@triton.jit
def latents(
    down, width, scale_q, scale_kv, bias_q, bias_kv, x_scale, gamma_q, gamma_kv, eps_q,
    eps_kv, cos, cos_row, sin, sin_row, slots, kv, kv_row, kr, kr_row, latent, codes, scales,
    point, offset, tokens,
    PARTS: tl.constexpr, Q: tl.constexpr, QP: tl.constexpr, L: tl.constexpr, LP: tl.constexpr,
    R: tl.constexpr, RP: tl.constexpr, INT8: tl.constexpr, BIAS: tl.constexpr,
    SCALED: tl.constexpr, QUANTISE: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr,
    DTYPE: tl.constexpr, PDL: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Of one token: the normed q latent (axis 1 at 0), or its cache rows (at 1).

    down: sums of parts [PARTS, tokens, Q + L + R], or with no parts finished numbers
    [tokens, ..].
    QUANTISE: 0 = no codes of the latent, 1 = per token, 2 = static. KEEP: store the latent. TILE:
    codes per scale of packed cache rows, 0 for caches in DTYPE.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    line, step = down + token * width, tokens * width
    row_scale = 1.0
    if SCALED:
        row_scale = tl.load(x_scale + token)
    if tl.program_id(1) == 0:
        column = tl.arange(0, QP)
        some = column < Q
        raw = finished(
            line, step, column, some, scale_q, bias_q, row_scale, PARTS, INT8, BIAS, SCALED,
            DTYPE, INTERPRET,
        )  # fmt: skip
        normed = norm(raw, gamma_q, column, some, Q, eps_q, DTYPE, INTERPRET)
        if KEEP:
            tl.store(latent + token * Q + column, narrowed(normed, DTYPE, INTERPRET), mask=some)
        if QUANTISE > 0:
            scale = tl.div_rn(largest(normed, 0), 127.0)
            if QUANTISE == 1:
                tl.store(scales + token, scale)
            number = coded(normed, scale, point, offset, QUANTISE == 2)
            tl.store(codes + token * Q + column, number, mask=some)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        store_rows(
            line + Q, step, scale_kv, bias_kv, row_scale, gamma_kv, eps_kv, cos + token * cos_row,
            sin + token * sin_row, kv + slot * kv_row, kr + slot * kr_row, slot >= 0,
            PARTS, L, LP, R, RP, INT8, BIAS, SCALED, TILE, DTYPE, INTERPRET,
        )  # fmt: skip


@triton.jit
def store_rows(
    line, step, scale, bias, row_scale, gamma, eps, cos, sin, kv, kr, there,
    PARTS: tl.constexpr, L: tl.constexpr, LP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    INT8: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr, TILE: tl.constexpr,
    DTYPE: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """The cache rows of one token: normed latent at ``kv``, turned key at ``kr`` or behind it."""
    column, number = tl.arange(0, LP), tl.arange(0, RP)
    some, some_r = column < L, number < R
    raw = finished(
        line, step, column, some, scale, bias, row_scale, PARTS, INT8, BIAS, SCALED, DTYPE,
        INTERPRET,
    )  # fmt: skip
    key = finished(
        line + L, step, number, some_r, scale + L, bias + L, row_scale, PARTS, INT8, BIAS, SCALED,
        DTYPE, INTERPRET,
    )  # fmt: skip
    normed = norm(raw, gamma, column, some, L, eps, DTYPE, INTERPRET)
    row = narrowed(normed, DTYPE, INTERPRET)
    key = narrowed(turned(key, cos, sin, R, RP), DTYPE, INTERPRET)
    if TILE > 0:
        store_latent(kv, normed, there, L, TILE, 2 * R)
        store_rope(kv + L, key.to(tl.float32), there, R, INTERPRET)
    else:
        tl.store(kv + column, row, mask=some & there)
        tl.store(kr + number, key, mask=some_r & there)


@triton.jit
def finished(
    line, step, column, some, scale, bias, row_scale, PARTS: tl.constexpr, INT8: tl.constexpr,
    BIAS: tl.constexpr, SCALED: tl.constexpr, DTYPE: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Columns of one token's projection, rounded to DTYPE, in F32."""
    total = tl.load(line + column, mask=some, other=0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(line + part * step + column, mask=some, other=0)
    if PARTS > 0:
        if INT8:
            if BIAS:
                total += tl.load(bias + column, mask=some, other=0)
            y = total.to(tl.float32) * tl.load(scale + column, mask=some, other=0.0)
            if SCALED:
                y = y * row_scale
        else:
            y = total
        return narrowed(y, DTYPE, INTERPRET).to(tl.float32)
    return total.to(tl.float32)


@triton.jit
def norm(
    x, gamma, column, some, WIDTH: tl.constexpr, eps, DTYPE: tl.constexpr, INTERPRET: tl.constexpr
):
    """RMS norm of F32 x, rounded to DTYPE before and after gamma; of F32 in F64, rounded once."""
    gain = tl.load(gamma + column, mask=some, other=0.0)
    if gamma.dtype.element_ty == tl.float32:
        wide = x.to(tl.float64)
        mean = tl.sum(wide * wide, 0) / WIDTH
        return (wide * (1.0 / tl.sqrt(mean + eps)) * gain.to(tl.float64)).to(tl.float32)
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(tl.sum(x * x, 0), WIDTH * 1.0) + eps))
    normed = narrowed(x * factor, DTYPE, INTERPRET).to(tl.float32)
    return narrowed(normed * gain.to(tl.float32), DTYPE, INTERPRET).to(tl.float32)


@triton.jit
def turned(x, cos, sin, R: tl.constexpr, RP: tl.constexpr):
    """The pairs (x[2j], x[2j + 1]) of F32 x [RP], R of them used, turned in place."""
    pair = tl.arange(0, RP // 2)
    c = tl.load(cos + pair, mask=pair < R // 2, other=0.0).to(tl.float32)
    s = tl.load(sin + pair, mask=pair < R // 2, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, (RP // 2, 2)))
    return tl.reshape(tl.join(even * c - odd * s, odd * c + even * s), (RP,))
