"""Quantised modules of an ``ascend`` checkpoint as exact integer products between F32 scalings.

Every product of int8 activations with int8 or int4 weights is summed exactly (in F64, which holds
all such integers), scaled, and returned in the activation's dtype. Activation codes are computed in
F32 as the NPU does, whatever the dtype around them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

INT8_MAX = 127


@dataclass(frozen=True)
class Channel:
    """Weight codes [N, K] as int8 and one F32 scale per output channel [N, 1]."""

    codes: torch.Tensor
    scale: torch.Tensor

    def dequantised(self) -> torch.Tensor:
        """Return codes · scale in F32 [N, K]."""
        return self.codes.to(torch.float32) * self.scale


@dataclass(frozen=True)
class Static:
    """W8A8: int8 codes [N, K], activation scale and offset [1], integer bias and deq_scale [N]."""

    codes: torch.Tensor
    input_scale: torch.Tensor
    input_offset: torch.Tensor
    quant_bias: torch.Tensor
    deq_scale: torch.Tensor

    def dequantised(self) -> torch.Tensor:
        """Return codes · deq_scale / input_scale in F32 [N, K]."""
        return self.codes.to(torch.float32) * (self.deq_scale / self.input_scale).unsqueeze(1)


def per_token_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes and scales of rows [T, K]: scale = absmax/127, code = round-half-even(x/scale).

    Both are F32 tensors (codes hold integers); a row of zeros gets codes and scale 0.
    """
    rows = x.to(torch.float32)
    scale = rows.abs().amax(dim=-1, keepdim=True) / INT8_MAX
    codes = torch.where(scale > 0, torch.round(rows / scale), torch.zeros_like(rows))
    return codes, scale


def dynamic_linear(x: torch.Tensor, weight: Channel) -> torch.Tensor:
    """Return y [T, N] = s_x · s_w · Σ x_q·w_q for rows x [T, K], in the dtype of x."""
    codes, scale = per_token_int8(x)
    total = codes.double() @ weight.codes.double().T
    return (total * scale.double() * weight.scale.double().T).to(x.dtype)


def static_linear(x: torch.Tensor, weight: Static) -> torch.Tensor:
    """Return y [T, N] = deq_scale · (Σ x_q·w_q + quant_bias), x_q = round(x/s + offset)."""
    scaled = x.to(torch.float32) / weight.input_scale + weight.input_offset.to(torch.float32)
    codes = torch.round(scaled).clamp(-128, 127)
    total = codes.double() @ weight.codes.double().T + weight.quant_bias.double()
    return (total * weight.deq_scale.double()).to(x.dtype)


class QuantLinear(nn.Module):
    """Stands in for ``nn.Linear`` of a W8A8 or W8A8_DYNAMIC module."""

    def __init__(self, weight: Channel | Static) -> None:
        super().__init__()
        self.quantised = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., K] to [..., N]."""
        rows = x.reshape(-1, x.shape[-1])
        if isinstance(self.quantised, Static):
            y = static_linear(rows, self.quantised)
        else:
            y = dynamic_linear(rows, self.quantised)
        return y.view(*x.shape[:-1], y.shape[-1])


class QuantExperts(nn.Module):
    """Stands in for transformers' experts; ``experts[e]`` holds gate, up and down of expert e."""

    def __init__(self, experts: list[dict[str, Channel]]) -> None:
        super().__init__()
        self.experts = experts

    def forward(
        self, hidden: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted expert sum [T, H] of rows [T, H]; ids and weights are [T, top_k]."""
        result = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(top_k_index == number)
            if len(rows) == 0:
                continue
            x = hidden[rows]
            gate, up = dynamic_linear(x, expert["gate"]), dynamic_linear(x, expert["up"])
            inner = nn.functional.silu(gate) * up
            y = dynamic_linear(inner, expert["down"])
            weights = top_k_weights[rows, slots].unsqueeze(1)
            result.index_add_(0, rows, (y * weights).to(result.dtype))
        return result
