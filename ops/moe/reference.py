"""Mixture of experts in plain torch: tokens grouped by expert, sums in slot order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from glm5_ascend.ops.matmul import int_matmul, linear_rows
from glm5_ascend.ops.moe.packing import unpack_int4
from glm5_ascend.ops.quant_linear.reference import dynamic_quant


class Layer(NamedTuple):
    """One linear layer of all experts; scales and scale_bias as in api."""

    weight: Tensor
    scale: Tensor | None
    scale_bias: Tensor | None
    scheme: str

    def apply(self, x: Tensor, expert: int) -> Tensor:
        """F32 or F64 [rows, N] of x [rows, K]."""
        weight = self.weight[expert]
        if self.scale is None:
            wide = torch.float64 if x.dtype == torch.float64 else torch.float32
            return linear_rows(x.to(wide), weight.to(wide))
        codes, x_scale = dynamic_quant(x)
        scale = self.scale[expert].float().view(-1)
        if self.scale_bias is None:
            return int_matmul(codes, weight).float() * scale * x_scale
        # The offset -8 is the NPU's: its int4 unit sees x_q as 16 * high + (low - 8) + 8, and
        # scale_bias restores the last term.
        total = functional.linear(codes.float() - 8, unpack_int4(weight).float())
        return (total * scale + self.scale_bias[expert].float().sum(-1)) * x_scale


def gating(
    logits: Tensor, bias: Tensor, top_k: int, factor: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    """(weights [T, top_k], ids int32 [T, top_k]); see api."""
    score = (logits if logits.dtype == torch.float64 else logits.float()).sigmoid()
    order = (score + bias.to(score.dtype)).sort(dim=-1, descending=True, stable=True).indices
    ids = order[:, :top_k]
    weights = score.gather(1, ids)
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * factor, ids.int()


def experts(x: Tensor, weights: Tensor, ids: Tensor, up: Layer, down: Layer) -> Tensor:
    """[T, H] in x's dtype; ids are local experts or -1."""
    tokens, top_k = ids.shape
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    slots = torch.zeros(tokens * top_k, x.shape[1], dtype=wide)
    flat = ids.flatten().long()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat + 1, minlength=up.weight.shape[0] + 1).tolist()
    start = counts[0]
    for expert, count in enumerate(counts[1:]):
        if count == 0:
            continue
        pairs = order[start : start + count]
        start += count
        gate, lift = up.apply(x[pairs // top_k], expert).chunk(2, -1)
        slots[pairs] = down.apply(functional.silu(gate) * lift, expert)
    return _weighted_sum(slots.view(tokens, top_k, -1), weights.to(wide)).to(x.dtype)


def _weighted_sum(slots: Tensor, weights: Tensor) -> Tensor:
    total = slots[:, 0] * weights[:, :1]
    for j in range(1, slots.shape[1]):
        total += slots[:, j] * weights[:, j : j + 1]
    return total
