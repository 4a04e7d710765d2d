"""Norms and rotary embedding in C++: one pass per row, F64 for F64, F32 for the other formats.

A row's bits depend on that row, the weights and ``eps`` alone: not on other rows, the number of
threads or the instruction set (sums run over 16 fixed partial sums, nothing is contracted).
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from glm5_ascend.ops.entry_points import FORMATS, EntryPoints, in_main_memory
from glm5_ascend.ops.native import check

_CONTIGUOUS = torch.contiguous_format
KERNELS = EntryPoints(
    "norm_rope",
    {"g5_rms_norm": "pinnnpdp", "g5_layer_norm": "pinnnppdp", "g5_rotary": "pinnnnnppip"},
)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[.., width]; see api."""
    in_main_memory(x, weight)
    rows, width, stride = _rows(x)
    if stride < 0:
        return rms_norm(x.contiguous(), weight, eps)
    weight = _plain(weight, x.dtype)
    out = torch.empty_like(x, memory_format=_CONTIGUOUS)
    kernel = KERNELS.get("g5_rms_norm", 8 * rows * width)
    code = kernel(
        x.data_ptr(),
        FORMATS[x.dtype],
        rows,
        width,
        stride,
        weight.data_ptr(),
        eps,
        out.data_ptr(),
    )
    if code:
        check(code, "rms_norm")
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """[.., width]; see api."""
    in_main_memory(x, weight, bias)
    rows, width, stride = _rows(x)
    if stride < 0:
        return layer_norm(x.contiguous(), weight, bias, eps)
    # In a narrower x's format weight and bias would be rounded first.
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    weight, bias = _plain(weight, wide), _plain(bias, wide)
    out = torch.empty_like(x, memory_format=_CONTIGUOUS)
    kernel = KERNELS.get("g5_layer_norm", 8 * rows * width)
    code = kernel(
        x.data_ptr(),
        FORMATS[x.dtype],
        rows,
        width,
        stride,
        weight.data_ptr(),
        bias.data_ptr(),
        eps,
        out.data_ptr(),
    )
    if code:
        check(code, "layer_norm")
    return out


def rotary_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[T, .., dim] rotated by cos, sin [T, dim / 2]."""
    in_main_memory(x, cos, sin)
    out = torch.empty_like(x, memory_format=_CONTIGUOUS)
    shape, strides = x.shape, x.stride()
    if len(shape) == 3 and strides[2] == 1:
        tokens, heads, width = shape
        token_stride, head_stride = strides[0], strides[1]
    else:
        x = x.contiguous()
        tokens, width = shape[0], shape[-1]
        heads = prod(shape[1:-1])
        token_stride, head_stride = heads * width, width
    # A table in F64 keeps its digits only where x does.
    table = cos.dtype if cos.dtype == x.dtype == torch.float64 else torch.float32
    cos, sin = _plain(cos, table), _plain(sin, table)
    kernel = KERNELS.get("g5_rotary", 8 * tokens * heads * width)
    code = kernel(
        x.data_ptr(),
        FORMATS[x.dtype],
        tokens,
        heads,
        width,
        token_stride,
        head_stride,
        cos.data_ptr(),
        sin.data_ptr(),
        FORMATS[table],
        out.data_ptr(),
    )
    if code:
        check(code, "rotary_interleaved")
    return out


def _rows(x: Tensor) -> tuple[int, int, int]:
    """(rows, width, elements between rows), the last -1 where rows are not evenly spaced."""
    shape, strides = x.shape, x.stride()
    width = shape[-1]
    if len(shape) == 2 and strides[1] == 1:
        return shape[0], width, strides[0]
    if x.is_contiguous():
        return prod(shape[:-1]), width, width
    return 0, 0, -1


def _plain(vector: Tensor, dtype: torch.dtype) -> Tensor:
    """``vector`` in ``dtype`` without gaps."""
    if vector.dtype != dtype:
        vector = vector.to(dtype)
    return vector if vector.is_contiguous() else vector.contiguous()
