"""Quantised modules of an ``ascend`` checkpoint as exact integer products between F32 scalings.

Every product of int8 activations with int8 or int4 weights is summed exactly (in F64, which holds
all such integers), scaled, and returned in the activation's dtype. Activation codes are computed in
F32 as the NPU does, whatever the dtype around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from tests.support.probe import Probe

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


def per_token_scale(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rows / scale, scale = absmax/127) in F32; a row of zeros gets scale 0 and zeros."""
    rows = rows.to(torch.float32)
    scale = rows.abs().amax(dim=-1, keepdim=True) / INT8_MAX
    return torch.where(scale > 0, rows / scale, torch.zeros_like(rows)), scale


def _product(codes: torch.Tensor, scale: torch.Tensor, weight: Channel) -> torch.Tensor:
    """Return s_x · s_w · Σ x_q·w_q in F64, the sum being exact."""
    total = codes.double() @ weight.codes.double().T
    return total * scale.double() * weight.scale.double().T


class QuantLinear(nn.Module):
    """Stands in for ``nn.Linear`` of a W8A8_DYNAMIC or W8A8 module called ``name``.

    W8A8_DYNAMIC: y = s_x·s_w·Σ x_q·w_q with s_x = absmax/127 per token, x_q = round(x/s_x).
    W8A8: y = deq_scale·(Σ x_q·w_q + quant_bias) with x_q = round(x/input_scale + input_offset).
    Rounding is to nearest even in F32.
    """

    def __init__(self, name: str, weight: Channel | Static, probe: Probe) -> None:
        super().__init__()
        self.name, self.quantised, self.probe = name, weight, probe

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., K] to [..., N]."""
        rows = x.reshape(-1, x.shape[-1])
        y = self._static(rows) if isinstance(self.quantised, Static) else self._dynamic(rows)
        return y.to(x.dtype).view(*x.shape[:-1], y.shape[-1])

    def _dynamic(self, rows: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.quantised, Channel)
        scaled, scale = per_token_scale(rows)
        return _product(self.probe.settle(self.name, scaled), scale, self.quantised)

    def _static(self, rows: torch.Tensor) -> torch.Tensor:
        weight = self.quantised
        assert isinstance(weight, Static)
        offset = weight.input_offset.to(torch.float32)
        scaled = rows.to(torch.float32) / weight.input_scale + offset
        codes = self.probe.settle(self.name, scaled.clamp(-128, 127))
        total = codes.double() @ weight.codes.double().T + weight.quant_bias.double()
        return total * weight.deq_scale.double()


class QuantExperts(nn.Module):
    """Stands in for transformers' experts; ``experts[e]`` holds gate, up and down of expert e."""

    def __init__(self, name: str, experts: list[dict[str, Channel]], probe: Probe) -> None:
        super().__init__()
        self.name, self.experts, self.probe = name, experts, probe

    def forward(
        self, hidden: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted expert sum [T, H] of rows [T, H]; ids and weights are [T, top_k]."""
        order = top_k_index.argsort(dim=-1)
        ids, weights = top_k_index.gather(1, order), top_k_weights.gather(1, order)
        scaled, scale = per_token_scale(hidden)
        codes = self.probe.settle(f"{self.name}.gate_up", scaled)
        inner = hidden.new_zeros(*ids.shape, self.experts[0]["down"].codes.shape[1])
        for expert, rows, slots in self._assigned(ids):
            gate, up = (
                _product(codes[rows], scale[rows], expert[part]).to(hidden.dtype)
                for part in ("gate", "up")
            )
            inner[rows, slots] = nn.functional.silu(gate) * up
        scaled, scale = per_token_scale(inner)
        codes = self.probe.settle(f"{self.name}.down", scaled)
        result = torch.zeros_like(hidden)
        for expert, rows, slots in self._assigned(ids):
            y = _product(codes[rows, slots], scale[rows, slots], expert["down"])
            y = y.to(hidden.dtype) * weights[rows, slots].unsqueeze(1)
            result.index_add_(0, rows, y.to(result.dtype))
        return result

    def _assigned(
        self, ids: torch.Tensor
    ) -> Iterator[tuple[dict[str, Channel], torch.Tensor, torch.Tensor]]:
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(ids == number)
            if len(rows):
                yield expert, rows, slots
