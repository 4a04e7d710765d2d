"""Mixture of experts in plain torch: tokens grouped by expert, sums in slot order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.matmul import EXACT_TERMS, int_matmul, linear_rows
from glm5_ascend.ops.moe import layer
from glm5_ascend.ops.moe.packing import unpack_int4
from glm5_ascend.ops.quant_linear.reference import dynamic_quant

# Up to this many gathered weights one batched product beats a loop over experts.
_GATHERED_WEIGHTS = 1 << 21


@dataclass(frozen=True, slots=True)
class Groups:
    """Pairs of token and expert, sorted by expert: ``expert`` int64 [P] and rows per expert."""

    expert: Tensor
    counts: list[int]

    def spans(self) -> list[tuple[int, slice]]:
        """(expert, rows) of every expert that has rows."""
        out, start = [], 0
        for expert, count in enumerate(self.counts):
            if count:
                out.append((expert, slice(start, start + count)))
            start += count
        return out


class Layer(layer.Layer):
    """One linear layer of all experts, and how it is applied."""

    def apply(self, x: Tensor, groups: Groups) -> Tensor:
        """F32 or F64 [P, N] of x [P, K], row p through its expert."""
        if self.scale is None:
            parts = [linear_rows(x[rows], self.weight[e].to(x.dtype)) for e, rows in groups.spans()]
            return torch.cat(parts) if parts else x.new_zeros(0, self.weight.shape[1])
        codes, x_scale = dynamic_quant(x)
        scale = self.scale.float().squeeze(-1).index_select(0, groups.expert)
        if self.scale_bias is None:
            return self._products(codes, groups) * scale * x_scale
        return (self._products(codes, groups) * scale + self._bias(groups)) * x_scale

    def _bias(self, groups: Groups) -> Tensor:
        """F32 [P, N]: scale_bias of every row's expert, its columns added one after the other."""
        assert self.scale_bias is not None
        few = len(groups.expert) < self.scale_bias.shape[0]
        columns = self.scale_bias.index_select(0, groups.expert) if few else self.scale_bias
        first, *others = columns.float().unbind(-1)
        total = sum(others, first)
        return total if few else total.index_select(0, groups.expert)

    def _products(self, codes: Tensor, groups: Groups) -> Tensor:
        """Exact integers as F32 [P, N]: sum x_q w for w8a8, sum (x_q - 8) w for w4a8.

        The offset -8 is the NPU's: its int4 unit takes x_q as 16 * high + (low - 8) + 8, and
        scale_bias restores the last term.
        """
        packed = self.scale_bias is not None
        pairs, terms = codes.shape
        outputs = self.weight.shape[1] * (2 if packed else 1)
        x = codes.float() - 8 if packed else codes.float()
        if terms <= EXACT_TERMS and pairs * outputs * terms <= _GATHERED_WEIGHTS:
            weight = self.weight.index_select(0, groups.expert)
            weight = unpack_int4(weight) if packed else weight
            return torch.bmm(x[:, None], weight.float().mT)[:, 0]
        out = torch.empty(pairs, outputs, device=codes.device)
        for expert, rows in groups.spans():
            if packed:
                # Exact below 2^24 / (135 * 8) = 15 534 terms.
                weight = unpack_int4(self.weight[expert]).float()
                out[rows] = functional.linear(x[rows], weight)
            else:
                out[rows] = int_matmul(codes[rows], self.weight[expert]).float()
        return out


def gating(
    logits: Tensor, bias: Tensor, top_k: int, factor: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    """(weights [T, top_k], ids int32 [T, top_k]); see api."""
    score = _sigmoid(logits if logits.dtype == torch.float64 else logits.float())
    biased = score + bias.to(score.dtype)
    ids = biased.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = score.gather(1, ids)
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * factor, ids.int()


def experts(x: Tensor, weights: Tensor, ids: Tensor, up: layer.Layer, down: layer.Layer) -> Tensor:
    """[T, H] in x's dtype; ids are local experts or -1.

    Raises:
        ArgumentError: an id names no expert.
    """
    tokens, top_k = ids.shape
    if ids.numel() and int(ids.max()) >= up.weight.shape[0]:
        raise ArgumentError(f"topk_ids name expert {int(ids.max())} of {up.weight.shape[0]}")
    wide = x if x.dtype == torch.float64 else x.float()
    flat = ids.flatten().long()
    counts = torch.bincount(flat + 1, minlength=up.weight.shape[0] + 1).tolist()
    order = flat.argsort(stable=True)[counts[0] :]
    groups = Groups(flat[order], counts[1:])
    up, down = Layer(*up), Layer(*down)
    gate, lift = up.apply(wide.index_select(0, order // top_k), groups).chunk(2, -1)
    slots = wide.new_zeros(tokens * top_k, x.shape[1])
    slots[order] = down.apply(gate * _sigmoid(gate) * lift, groups)
    return _weighted_sum(slots.view(tokens, top_k, x.shape[1]), weights.to(wide.dtype)).to(x.dtype)


def _sigmoid(x: Tensor) -> Tensor:
    # torch.sigmoid rounds the last elements of a tensor differently from the others, so that a
    # row's bits would depend on the batch; exp does not.
    return 1 / (1 + (-x).exp())


def _weighted_sum(slots: Tensor, weights: Tensor) -> Tensor:
    total = slots[:, 0] * weights[:, :1]
    for j in range(1, slots.shape[1]):
        total += slots[:, j] * weights[:, j : j + 1]
    return total
