"""Hadamard rotation of 128 values and int8 quantisation in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """(codes int8 [rows, 128], scale [rows]) of x [rows, 128]; see api."""
    y = rotate(x if x.dtype == torch.float64 else x.float())
    scale = y.abs().amax(-1) / 127
    codes = (y / scale.masked_fill(scale == 0, 1)[:, None]).nan_to_num(0).round()
    # A subnormal scale is coarse: quotients may exceed 127.
    return codes.clamp(-127, 127).to(torch.int8), scale


def rotate(x: Tensor) -> Tensor:
    """x H / sqrt(d) of x [rows, d], d a power of two; H is Sylvester's matrix."""
    rows, width = x.shape
    distance = 1
    while distance < width:
        a, b = x.view(rows, width // (2 * distance), 2, distance).unbind(2)
        x = torch.stack((a + b, a - b), 2)
        distance *= 2
    return x.reshape(rows, width) * (1 / math.sqrt(width))
