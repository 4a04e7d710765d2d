"""Public entries of the int8 linear layers."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.dispatch import load
from glm5_ascend.ops.errors import ArgumentError


def dynamic_quant(x: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Symmetric int8 quantisation of every row: scale = max|x| / 127, code = round(x / scale).

    Args:
        x: [.., K]; arithmetic in F32, ties to even.

    Returns:
        (codes int8 [.., K] in -127..127, scale F32 [.., 1]). A zero row has scale 0 and codes 0.
    """
    module = load("quant_linear", backend, x)
    out: tuple[Tensor, Tensor] = module.dynamic_quant(x)
    return out


def linear_w8a8_dynamic(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """y = (x_q . w_q) * weight_scale * x_scale + bias, x quantised per row.

    Args:
        x: [.., K].
        weight: int8 [N, K].
        weight_scale: [N, 1].
        bias: [N] or None.

    Returns:
        [.., N] in x's dtype; int32 accumulation is exact, the rest is F32.
    """
    _check_weight(x, weight)
    if weight_scale.shape != (weight.shape[0], 1):
        raise ArgumentError(
            f"weight_scale {tuple(weight_scale.shape)} must be [{weight.shape[0]}, 1]"
        )
    module = load("quant_linear", backend, x)
    out: Tensor = module.linear_w8a8_dynamic(x, weight, weight_scale, bias)
    return out


def linear_w8a8_static(
    x: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    input_offset: Tensor,
    quant_bias: Tensor,
    deq_scale: Tensor,
    *,
    backend: str = "auto",
) -> Tensor:
    """y = (x_q . w_q + quant_bias) * deq_scale, x_q = clip(round(x / input_scale + offset)).

    Args:
        x: [.., K].
        weight: int8 [N, K].
        input_scale: one element.
        input_offset: one element, a whole number in -128..127.
        quant_bias: int32 [N]; holds bias / deq_scale - input_offset * sum_k w_q.
        deq_scale: F32 [N], input_scale * weight_scale.

    Returns:
        [.., N] in x's dtype; int32 accumulation is exact, the rest is F32, ties to even.
    """
    _check_weight(x, weight)
    if not quant_bias.shape == deq_scale.shape == weight.shape[:1]:
        raise ArgumentError(
            f"quant_bias {tuple(quant_bias.shape)} and deq_scale {tuple(deq_scale.shape)} must be "
            f"[{weight.shape[0]}]"
        )
    if quant_bias.dtype != torch.int32:
        raise ArgumentError(f"quant_bias must be int32, not {quant_bias.dtype}")
    if input_scale.numel() != 1 or input_offset.numel() != 1:
        raise ArgumentError("input_scale and input_offset must have one element")
    module = load("quant_linear", backend, x)
    out: Tensor = module.linear_w8a8_static(
        x, weight, input_scale, input_offset, quant_bias, deq_scale
    )
    return out


def _check_weight(x: Tensor, weight: Tensor) -> None:
    if weight.dtype != torch.int8 or weight.ndim != 2 or weight.shape[1] != x.shape[-1]:
        raise ArgumentError(
            f"weight {weight.dtype} {tuple(weight.shape)} must be int8 [N, {x.shape[-1]}]"
        )
