"""Hadamard rotation with int8 quantisation in Triton: the reference's operations in its order.

Not run on a GPU yet: Triton's interpreter runs the kernel, its compiler builds it for sm_90a. Only
additions, one product and correctly rounded quotients, so a row has the reference's bits.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.hadamard_quant.triton_source import rotate_quantise
from glm5_ascend.ops.triton.runtime import check_device

ROWS, WARPS = 16, 4  # of a program
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """(codes int8 [rows, 128], scale F32 [rows]) of x [rows, 128]; see api.

    Raises:
        Declined: F64.
        ArgumentError: a tensor that is not on a CUDA device.
    """
    check_device(x)
    if x.dtype not in _DTYPES:
        raise Declined(
            "backend 'triton' rotates bfloat16, float16 or float32, not "
            f"{str(x.dtype).removeprefix('torch.')}",
            "choose backend 'reference'",
        )
    rows, width = x.shape
    codes = torch.empty(rows, width, dtype=torch.int8, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        rotate_quantise[(triton.cdiv(rows, ROWS),)](
            x, x.stride(0), codes, scale, rows, 1 / math.sqrt(width),
            WIDTH=width, STEPS=width.bit_length() - 1, BR=ROWS, num_warps=WARPS,
        )  # fmt: skip
    return codes, scale
