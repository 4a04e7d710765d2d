"""MLA pre-processing on the CPU: three passes in C++ around products of oneDNN.

quantise -> down products -> norms, rotation, cache rows, quantise -> up product -> rotation, split
-> W_UK per head. Products use packed weights (ops/prepacked.py); for one row ``torch._int_mm``,
which reads the weight as it is. Sums of int8 products are exact; what follows has the operations
and roundings of the separate operators, so the results are theirs bit by bit.

A row's bits ignore the other rows where the products' do: int8 always; BF16 and F32 as measured
(ops/prepacked.py, and F32 products with W_UK have at least four rows for it); F16 and F64 as
``ops.linear_rows`` does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

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
        "g5_mlapo_quantise": "pinnnddpp",
        "g5_mlapo_latents": "in" + "pippn" + "pippnn" + "ppdpd" + "ppi" + "ppnpn" + "pppdd",
        "g5_mlapo_heads": "innnn" + "pippp" + "ppi" + "pp",
    },
)
# MKL adds in another order below this many rows.
_MIN_ROWS = 4


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
    nope, query_rope = _heads(inputs, _project(up_input, latent.scale, inputs.up_q), angles)
    query, query_scale = _absorb(nope, inputs.absorb), None
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
        *_numbers(static),
        codes.data_ptr(),
        address(scale),
    )
    check(code, "mlapo")
    return codes


def _numbers(static: Static | None) -> tuple[float, float]:
    return (1.0, 0.0) if static is None else (float(static.scale), float(static.offset))


def _angles(inputs: Inputs) -> tuple[Tensor, Tensor, int]:
    """cos and sin [T, rope / 2] without gaps, F64 where that and the activations are F64."""
    wide = inputs.cos.dtype == inputs.dtype == torch.float64
    kind = torch.float64 if wide else torch.float32
    cos, sin = (table.to(kind).contiguous() for table in (inputs.cos, inputs.sin))
    return cos, sin, _FORMATS[kind]


def _project(x: Tensor, row_scale: Tensor | None, linear: Linear) -> _Product:
    if linear.scale is None:
        return _Product(float_matmul(x, linear.weight), _PLAIN, None, None, None)
    sums = int8_matmul(x, linear.weight, exact=linear.bias is not None)
    kind = _INTEGERS if sums.dtype == torch.int32 else _WHOLE_F32
    return _Product(sums, kind, linear.scale, linear.bias, row_scale)


def _latents(
    inputs: Inputs, down_q: _Product, down_kv: _Product, angles: tuple[Tensor, Tensor, int]
) -> _Latent:
    sizes, static = inputs.sizes, inputs.latent_static
    quantised = inputs.up_q.is_int8
    plain = torch.empty(sizes.tokens, sizes.q_lora, dtype=inputs.dtype)
    codes = torch.empty_like(plain, dtype=torch.int8) if quantised else None
    scale = torch.empty(sizes.tokens, 1) if quantised and static is None else None
    kv_cache, kr_cache, slots = _targets(inputs)
    cos, sin, angle_format = angles
    code = _KERNELS.get("g5_mlapo_latents", plain.numel())(
        _FORMATS[inputs.dtype],
        sizes.tokens,
        *down_q.arguments(),
        sizes.q_lora,
        *down_kv.arguments(),
        sizes.kv_lora,
        sizes.rope,
        address(down_q.row_scale),
        inputs.gamma_q.contiguous().data_ptr(),
        inputs.eps_q,
        inputs.gamma_kv.contiguous().data_ptr(),
        inputs.eps_kv,
        cos.data_ptr(),
        sin.data_ptr(),
        angle_format,
        slots.data_ptr(),
        kv_cache.data_ptr(),
        _row_stride(kv_cache),
        kr_cache.data_ptr(),
        _row_stride(kr_cache),
        plain.data_ptr(),
        address(codes),
        address(scale),
        *_numbers(static),
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


def _heads(
    inputs: Inputs, up: _Product, angles: tuple[Tensor, Tensor, int]
) -> tuple[Tensor, Tensor]:
    """(nope [heads, T, nope] for the product with W_UK, rotated [T, heads, rope])."""
    sizes = inputs.sizes
    nope = torch.empty(sizes.heads, sizes.tokens, sizes.nope, dtype=inputs.dtype)
    rope = torch.empty(sizes.tokens, sizes.heads, sizes.rope, dtype=inputs.dtype)
    cos, sin, angle_format = angles
    code = _KERNELS.get("g5_mlapo_heads", up.data.numel())(
        _FORMATS[inputs.dtype],
        sizes.tokens,
        sizes.heads,
        sizes.nope,
        sizes.rope,
        *up.arguments(),
        address(up.row_scale),
        cos.data_ptr(),
        sin.data_ptr(),
        angle_format,
        nope.data_ptr(),
        rope.data_ptr(),
    )
    check(code, "mlapo")
    return nope, rope


def _absorb(nope: Tensor, weight: Tensor) -> Tensor:
    """[T, heads, kv_lora] of nope [heads, T, nope] and weight [heads, nope, kv_lora]."""
    heads, rows, _ = nope.shape
    if rows < _MIN_ROWS and nope.dtype != torch.bfloat16:
        padded = functional.pad(nope, (0, 0, 0, _MIN_ROWS - rows))
        return torch.bmm(padded, weight)[:, :rows].transpose(0, 1).contiguous()
    query = torch.empty(rows, heads, weight.shape[2], dtype=nope.dtype)
    torch.bmm(nope, weight, out=query.transpose(0, 1))
    return query
