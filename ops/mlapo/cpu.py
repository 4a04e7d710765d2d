"""MLA pre-processing on the CPU: passes in C++ around the products.

quantise | down products | norms, rotated key, cache rows, quantise | up product | rotated queries,
W_UK per head. Sums of int8 products are exact, and the rest has the operations and roundings of
the separate operators, so results are theirs bit by bit but for the order of float sums.

Which product is fastest was measured (Zen 4, one thread; README.md): int8 up to 8 rows by kernels
that read the weight as it lies in memory, more rows by oneDNN with packed weights, as float
weights always (ops/prepacked.py); W_UK by kernels of our own.

A row's bits ignore the other rows: int8 and W_UK by construction, BF16 and F32 weights as measured
of oneDNN, F16 and F64 weights as far as ``ops.linear_rows`` does.
"""

from __future__ import annotations

from ctypes import c_double, c_float, c_int64
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glm5_ascend.ops import dispatch
from glm5_ascend.ops.entry_points import EntryPoints
from glm5_ascend.ops.mlapo.arguments import Inputs, Linear, Outputs, Static
from glm5_ascend.ops.native import DTYPES, address, check
from glm5_ascend.ops.prepacked import float_matmul, int8_matmul

_FORMATS = DTYPES | {torch.float64: 3}
# enum Kind of rows.h
_PLAIN, _INTEGERS, _WHOLE_F32 = 0, 1, 2
_KERNELS = EntryPoints(
    "mlapo",
    {
        "g5_mlapo_quantise": "pinnnppp",
        "g5_mlapo_product": "pnnpnnp",
        "g5_mlapo_latents": "ip" + "pipp" * 2 + "pppp" + "ppp" + "pp" + "pppp",
        "g5_mlapo_heads": "innnnn" + "pippp" + "pp" + "pnn" + "pp",
    },
)
# From more rows on, oneDNN's product with a packed weight is faster.
_FEW_ROWS = 8


class _Product(NamedTuple):
    """Sums of a projection [T, N] with what scales them (struct Product of rows.h)."""

    data: Tensor
    kind: int
    scale: Tensor | None
    bias: Tensor | None
    row_scale: Tensor | None

    def arguments(self) -> tuple[int, int, int, int]:
        """Pointer, kind, channel scales and bias as the kernels take them."""
        return self.data.data_ptr(), self.kind, address(self.scale), address(self.bias)


class _Latent(NamedTuple):
    """Normalised q latent [T, q_lora] with its codes and, if per token, their scales [T, 1]."""

    plain: Tensor
    codes: Tensor | None
    scale: Tensor | None


def forward(inputs: Inputs) -> Outputs:
    """Queries, and the rows of the caches, of ``inputs.x``; see README.md."""
    sizes = inputs.sizes
    x, x_scale = inputs.x, inputs.x_scale
    if inputs.down_q.is_int8 and x_scale is None:
        x, x_scale = _quantise(x, inputs.x_static)
    angles = _angles(inputs)
    down_q, down_kv = (_project(x, x_scale, down) for down in (inputs.down_q, inputs.down_kv))
    latent = _latents(inputs, down_q, down_kv, angles)
    up_input = latent.plain if latent.codes is None else latent.codes
    query, query_rope = _heads(inputs, _project(up_input, latent.scale, inputs.up_q), angles)
    query_scale = None
    if inputs.quantise_query:
        query_scale = torch.empty(sizes.tokens, sizes.heads, 1)
        query = _codes(query.view(-1, sizes.kv_lora), None, query_scale).view(query.shape)
    returned = {"none": None, "float": latent.plain, "int8": latent.codes}[inputs.latent]
    scale = latent.scale if inputs.latent == "int8" else None
    return Outputs(query, query_rope, query_scale, returned, scale)


def _quantise(x: Tensor, static: Static | None) -> tuple[Tensor, Tensor | None]:
    """(int8 codes of x [T, K], F32 scales [T, 1], or None where they are static)."""
    scale = torch.empty(x.shape[0], 1) if static is None else None
    return _codes(x, static, scale), scale


def _codes(x: Tensor, static: Static | None, scale: Tensor | None) -> Tensor:
    """int8 codes of x [T, K]; its own scales are written to ``scale`` where that is given."""
    rows, width = x.shape
    codes = torch.empty(rows, width, dtype=torch.int8)
    code = _KERNELS.get("g5_mlapo_quantise", rows * width)(
        x.data_ptr(),
        _FORMATS[x.dtype],
        rows,
        width,
        x.stride(0),
        _fixed(static),
        codes.data_ptr(),
        address(scale),
    )
    check(code, "mlapo")
    return codes


def _fixed(static: Static | None) -> Any:
    """Scale and offset as the kernels take them, None for scales per token."""
    if static is None:
        return None
    return (c_float * 2)(float(static.scale), float(static.offset))


def _angles(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """cos and sin [T, rope / 2] without gaps, in the format that rotation is computed in."""
    wide = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    return inputs.cos.to(wide).contiguous(), inputs.sin.to(wide).contiguous()


def _project(x: Tensor, row_scale: Tensor | None, linear: Linear) -> _Product:
    if linear.scale is None:
        return _Product(float_matmul(x, linear.weight), _PLAIN, None, None, None)
    if x.shape[0] <= _FEW_ROWS:
        sums = _few_rows(x, linear.weight)
    else:
        sums = int8_matmul(x, linear.weight, exact=linear.bias is not None)
    kind = _INTEGERS if sums.dtype == torch.int32 else _WHOLE_F32
    return _Product(sums, kind, linear.scale, linear.bias, row_scale)


def _few_rows(codes: Tensor, weight: Tensor) -> Tensor:
    """int32 [T, N] of int8 codes [T, K] and weight [N, K]."""
    if weight.stride(1) != 1:
        weight = weight.contiguous()
    codes = codes.contiguous()
    rows, outputs = codes.shape[0], weight.shape[0]
    sums = torch.empty(rows, outputs, dtype=torch.int32)
    code = _KERNELS.get("g5_mlapo_product", rows * weight.numel())(
        codes.data_ptr(),
        rows,
        codes.shape[1],
        weight.data_ptr(),
        outputs,
        weight.stride(0),
        sums.data_ptr(),
    )
    check(code, "mlapo")
    return sums


def _latents(
    inputs: Inputs, down_q: _Product, down_kv: _Product, angles: tuple[Tensor, Tensor]
) -> _Latent:
    sizes, static = inputs.sizes, inputs.latent_static
    quantised = inputs.up_q.is_int8
    plain = torch.empty(sizes.tokens, sizes.q_lora, dtype=inputs.dtype)
    codes = torch.empty_like(plain, dtype=torch.int8) if quantised else None
    scale = torch.empty(sizes.tokens, 1) if quantised and static is None else None
    kv_cache, kr_cache, slots = _targets(inputs)
    code = _KERNELS.get("g5_mlapo_latents", plain.numel())(
        _FORMATS[inputs.dtype],
        (c_int64 * 6)(
            sizes.tokens,
            sizes.q_lora,
            sizes.kv_lora,
            sizes.rope,
            _row_stride(kv_cache),
            _row_stride(kr_cache),
        ),
        *down_q.arguments(),
        *down_kv.arguments(),
        address(down_q.row_scale),
        inputs.gamma_q.data_ptr(),
        inputs.gamma_kv.data_ptr(),
        (c_double * 2)(inputs.eps_q, inputs.eps_kv),
        *(table.data_ptr() for table in angles),
        slots.data_ptr(),
        kv_cache.data_ptr(),
        kr_cache.data_ptr(),
        plain.data_ptr(),
        _fixed(static),
        address(codes),
        address(scale),
    )
    check(code, "mlapo")
    if inputs.kr_cache is None:
        write = dispatch.load("paged_cache", "cpu", inputs.kv_cache).write_kv_rows
        write(inputs.kv_cache, kv_cache, kr_cache, inputs.slots)
    return _Latent(plain, codes, scale)


def _targets(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """(latents, rotated keys, rows in them): the caches, or rows that are packed afterwards."""
    if inputs.kr_cache is not None:
        return inputs.kv_cache, inputs.kr_cache, inputs.slots.long().contiguous()
    sizes = inputs.sizes
    latent = torch.zeros(sizes.tokens, sizes.kv_lora, dtype=inputs.dtype)
    key = torch.zeros(sizes.tokens, sizes.rope, dtype=inputs.dtype)
    return latent, key, torch.arange(sizes.tokens)


def _row_stride(rows: Tensor) -> int:
    # An axis of one row may have any stride.
    return rows.stride(-2) if rows.shape[-2] > 1 else rows.stride(0)


def _heads(inputs: Inputs, up: _Product, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(query [T, heads, kv_lora], rotated [T, heads, rope])."""
    sizes, w_uk = inputs.sizes, inputs.absorb
    if w_uk.stride(2) != 1:
        w_uk = w_uk.contiguous()
    query = torch.empty(sizes.tokens, sizes.heads, sizes.kv_lora, dtype=inputs.dtype)
    rope = torch.empty(sizes.tokens, sizes.heads, sizes.rope, dtype=inputs.dtype)
    code = _KERNELS.get("g5_mlapo_heads", sizes.tokens * w_uk.numel())(
        _FORMATS[inputs.dtype],
        sizes.tokens,
        sizes.heads,
        sizes.nope,
        sizes.rope,
        sizes.kv_lora,
        *up.arguments(),
        address(up.row_scale),
        *(table.data_ptr() for table in angles),
        w_uk.data_ptr(),
        w_uk.stride(0),
        w_uk.stride(1),
        query.data_ptr(),
        rope.data_ptr(),
    )
    check(code, "mlapo")
    return query, rope
