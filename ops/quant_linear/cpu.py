"""Int8 linear layers in C++: exact int32 sums, then the reference's F32 operations in its order.

Codes, scales and results equal the reference's bit by bit, so a row's bits depend on that row and
the weights alone. Few rows are multiplied by kernels that read the weight as it lies in memory,
once per call; many rows by torch's int8 product (oneDNN), where that is exact.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from glm5_ascend.ops.entry_points import FORMATS, EntryPoints, in_main_memory
from glm5_ascend.ops.matmul import int_matmul, library_is_exact
from glm5_ascend.ops.native import check

_INT8 = 4  # format number of an input_offset that is stored as a code
# From here on oneDNN's product pays for packing the weight anew at every call.
_MANY_ROWS = 256
KERNELS = EntryPoints(
    "quant_linear",
    {
        "g5_dynamic_quant": "pinnnpp",
        "g5_static_quant": "pinnnpipip",
        "g5_scale_dynamic": "pnnppipiip",
        "g5_scale_static": "pnnppip",
        "g5_linear_dynamic": "pinnnpnpipip",
        "g5_linear_static": "pinnnpnpipippp",
    },
)


def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """(codes int8 [.., K], scale F32 [.., 1]); see api."""
    in_main_memory(x)
    x, rows, terms, stride = _rows(x)
    codes = torch.empty(x.shape, dtype=torch.int8)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32)
    code = KERNELS.get("g5_dynamic_quant", 8 * rows * terms)(
        x.data_ptr(),
        FORMATS[x.dtype],
        rows,
        terms,
        stride,
        codes.data_ptr(),
        scale.data_ptr(),
    )
    if code:
        check(code, "dynamic_quant")
    return codes, scale


def linear_w8a8_dynamic(
    x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
) -> Tensor:
    """[.., N] in x's dtype; see api."""
    in_main_memory(x, weight, weight_scale)
    x, rows, terms, stride = _rows(x)
    weight = weight if weight.is_contiguous() else weight.contiguous()
    outputs = weight.shape[0]
    weight_scale = _vector(weight_scale)
    bias = None if bias is None else _vector(bias)
    scales = (
        weight_scale.data_ptr(),
        FORMATS[weight_scale.dtype],
        None if bias is None else bias.data_ptr(),
        0 if bias is None else FORMATS[bias.dtype],
    )
    out = x.new_empty(*x.shape[:-1], outputs)
    if rows >= _MANY_ROWS and library_is_exact(x.device, weight):
        codes, x_scale = dynamic_quant(x)
        sums = int_matmul(codes, weight)
        code = KERNELS.get("g5_scale_dynamic", rows * terms * outputs)(
            sums.data_ptr(),
            rows,
            outputs,
            x_scale.data_ptr(),
            *scales,
            FORMATS[x.dtype],
            out.data_ptr(),
        )
    else:
        code = KERNELS.get("g5_linear_dynamic", rows * terms * outputs)(
            x.data_ptr(),
            FORMATS[x.dtype],
            rows,
            terms,
            stride,
            weight.data_ptr(),
            outputs,
            *scales,
            out.data_ptr(),
        )
    if code:
        check(code, "linear_w8a8_dynamic")
    return out


def linear_w8a8_static(
    x: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    input_offset: Tensor,
    quant_bias: Tensor,
    deq_scale: Tensor,
) -> Tensor:
    """[.., N] in x's dtype; see api."""
    in_main_memory(x, weight, input_scale, input_offset, quant_bias, deq_scale)
    x, rows, terms, stride = _rows(x)
    weight = weight if weight.is_contiguous() else weight.contiguous()
    outputs = weight.shape[0]
    input_scale, input_offset = _vector(input_scale), _vector(input_offset)
    quant_bias, deq_scale = quant_bias.contiguous(), deq_scale.float().contiguous()
    source = (x.data_ptr(), FORMATS[x.dtype], rows, terms, stride)
    quantiser = (
        input_scale.data_ptr(),
        FORMATS[input_scale.dtype],
        input_offset.data_ptr(),
        _INT8 if input_offset.dtype == torch.int8 else FORMATS[input_offset.dtype],
    )
    scales = (quant_bias.data_ptr(), deq_scale.data_ptr())
    out = x.new_empty(*x.shape[:-1], outputs)
    work = rows * terms * outputs
    if rows >= _MANY_ROWS and library_is_exact(x.device, weight):
        codes = torch.empty(x.shape, dtype=torch.int8)
        code = KERNELS.get("g5_static_quant", work)(*source, *quantiser, codes.data_ptr())
        check(code, "linear_w8a8_static")
        sums = int_matmul(codes, weight)
        code = KERNELS.get("g5_scale_static", work)(
            sums.data_ptr(), rows, outputs, *scales, FORMATS[x.dtype], out.data_ptr()
        )
    else:
        code = KERNELS.get("g5_linear_static", work)(
            *source, weight.data_ptr(), outputs, *quantiser, *scales, out.data_ptr()
        )
    if code:
        check(code, "linear_w8a8_static")
    return out


def _rows(x: Tensor) -> tuple[Tensor, int, int, int]:
    """(x or a plain copy, rows, width, elements between rows)."""
    shape, strides = x.shape, x.stride()
    width = shape[-1]
    if len(shape) == 2 and strides[1] == 1:
        return x, shape[0], width, strides[0]
    return x.contiguous(), prod(shape[:-1]), width, width


def _vector(vector: Tensor) -> Tensor:
    """``vector`` without gaps, in a format that the kernels read."""
    if vector.dtype not in FORMATS and vector.dtype != torch.int8:
        vector = vector.float()
    return vector if vector.is_contiguous() else vector.contiguous()
