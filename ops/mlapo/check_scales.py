"""Checks of mlapo's scales, offsets and integer biases."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops import checks
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.mlapo.arguments import Linear, Sizes, Static
from glm5_ascend.ops.mlapo.call import Call

_SCALES = (torch.bfloat16, torch.float16, torch.float32)


def token_scales(call: Call, sizes: Sizes) -> Tensor | None:
    """F32 [T, 1] of an int8 token_x, None for a float one."""
    scale = call.dequant_scale_x
    if (scale is not None) != (call.token_x.dtype == torch.int8):
        raise ArgumentError("dequant_scale_x goes with an int8 token_x, and with no other")
    if scale is None:
        return None
    checks.dtype("dequant_scale_x", scale, (torch.float32,))
    if scale.numel() != sizes.tokens:
        raise ArgumentError(
            f"dequant_scale_x must hold one scale per token, {sizes.tokens}, not shape "
            f"{list(scale.shape)}"
        )
    return scale.reshape(-1, 1).contiguous()


def static(call: Call, point: str, allowed: bool) -> Static | None:
    """Scale and offset of the activations at ``point`` ("x" or "cq"), None if per token."""
    scale = getattr(call, f"quant_scale_{point}")
    offset = getattr(call, f"quant_offset_{point}")
    if scale is None and offset is None:
        return None
    if scale is None or offset is None or not allowed:
        raise ArgumentError(
            f"quant_scale_{point} and quant_offset_{point} go together, with int8 weights and "
            "float activations only"
        )
    checks.dtype(f"quant_scale_{point}", scale, _SCALES)
    checks.dtype(f"quant_offset_{point}", offset, (torch.int8, *_SCALES))
    for name, value in ((f"quant_scale_{point}", scale), (f"quant_offset_{point}", offset)):
        if value.numel() != 1:
            raise ArgumentError(f"{name} must have one element, not shape {list(value.shape)}")
    return Static(scale, offset)


def linear(
    call: Call, name: str, dtype: torch.dtype, quantised: bool, point: Static | None
) -> Linear:
    """The projection ``weight_<name>``, turned to [N, K], with its scales."""
    weight, scale = getattr(call, f"weight_{name}"), getattr(call, f"dequant_scale_w_{name}")
    bias = getattr(call, f"quant_bias_{name}")
    checks.dtype(f"weight_{name}", weight, (torch.int8 if quantised else dtype,))
    if (scale is not None) != quantised:
        raise ArgumentError(f"dequant_scale_w_{name} goes with an int8 weight_{name}")
    if (bias is not None) != (point is not None):
        raise ArgumentError(
            f"quant_bias_{name} goes with statically quantised activations, and they with it"
        )
    if scale is None:
        return Linear(weight.T)
    columns = weight.shape[1]
    checks.dtype(f"dequant_scale_w_{name}", scale, _SCALES)
    if scale.numel() != columns or scale.ndim > 2:
        raise ArgumentError(
            f"dequant_scale_w_{name} must be [1, {columns}], [{columns}, 1] or [{columns}], not "
            f"shape {list(scale.shape)}"
        )
    if bias is not None:
        checks.dtype(f"quant_bias_{name}", bias, (torch.int32,))
        checks.shape(f"quant_bias_{name}", bias, (columns,))
        bias = bias.contiguous()
    return Linear(weight.T, scale.reshape(-1).float().contiguous(), bias)
