"""Int8 linear layers in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.matmul import int_matmul


def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """(codes int8 [.., K], scale F32 [.., 1]); see api."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / 127
    codes = (wide / scale.masked_fill(scale == 0, 1)).round_().clamp_(-127, 127)
    return codes.to(torch.int8), scale


def linear_w8a8_dynamic(
    x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
) -> Tensor:
    """[.., N] in x's dtype; see api."""
    codes, scale = dynamic_quant(x)
    y = int_matmul(codes, weight).float() * weight_scale.float().view(-1) * scale
    if bias is not None:
        y += bias.float()
    return y.to(x.dtype)


def linear_w8a8_static(
    x: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    input_offset: Tensor,
    quant_bias: Tensor,
    deq_scale: Tensor,
) -> Tensor:
    """[.., N] in x's dtype; see api."""
    shifted = x.float() / input_scale.float() + input_offset.float()
    codes = shifted.round_().clamp_(-128, 127).to(torch.int8)
    return ((int_matmul(codes, weight) + quant_bias).float() * deq_scale.float()).to(x.dtype)
