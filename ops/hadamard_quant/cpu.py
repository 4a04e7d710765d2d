"""Hadamard rotation with int8 quantisation in C++ (csrc/).

Every row has the bits of backend 'reference', whatever instruction set, batch or threads.
"""

from __future__ import annotations

from ctypes import c_int, c_int64, c_void_p

import torch
from torch import Tensor

from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.native import DTYPES, check, library

_TYPES = (c_int, c_void_p, c_int64, c_int64, c_void_p, c_void_p)


def forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """(codes int8 [rows, 128], scale F32 [rows]) of x [rows, 128] in F32, bf16 or F16; see api.

    Raises:
        ArgumentError: F64, which only backend 'reference' computes.
        BackendUnavailable: the kernels cannot be compiled here.
    """
    number = DTYPES.get(x.dtype)
    if number is None:
        raise ArgumentError(
            "backend 'cpu' needs x in float32, bfloat16 or float16, not "
            f"{str(x.dtype).removeprefix('torch.')}",
            "convert it, or choose backend 'reference'",
        )
    codes = torch.empty(x.shape, dtype=torch.int8)
    scale = torch.empty(len(x), dtype=torch.float32)
    entry = library("hadamard_quant").g5_hadamard_quant
    if entry.argtypes is None:
        entry.argtypes = _TYPES
    rows = len(x), codes.data_ptr(), scale.data_ptr()
    check(entry(number, x.data_ptr(), x.stride(0), *rows), "hadamard_quant")
    return codes, scale
