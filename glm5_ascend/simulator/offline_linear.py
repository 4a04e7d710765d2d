"""Linears and experts of the offline model, one callable per quantisation scheme.

Every callable keeps the codes and scales of its file, so that the arithmetic of the scheme
(per-token activation quantisation included) is done by :mod:`glm5_ascend.ops` when it is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from glm5_ascend.ops import linear_w8a8_dynamic, linear_w8a8_static, moe_experts

FLOAT = "FLOAT"
W8A8 = "W8A8"
W8A8_DYNAMIC = "W8A8_DYNAMIC"
W4A8_DYNAMIC = "W4A8_DYNAMIC"
MoeScheme = Literal["float", "w8a8", "w4a8"]
MOE_SCHEMES: dict[str, MoeScheme] = {FLOAT: "float", W8A8_DYNAMIC: "w8a8", W4A8_DYNAMIC: "w4a8"}

Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class FloatLinear:
    """y = x Wᵀ with ``weight`` [out, in] in the compute dtype."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight)


@dataclass(frozen=True, slots=True)
class DynamicLinear:
    """W8A8_DYNAMIC: int8 ``weight`` [out, in], F32 ``scale`` [out, 1], x quantised per token."""

    weight: Tensor
    scale: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return linear_w8a8_dynamic(x, self.weight, self.scale)


@dataclass(frozen=True, slots=True)
class StaticLinear:
    """W8A8: x quantised by one stored scale and offset; ``quant_bias`` int32 and ``deq_scale`` F32
    are [out]."""

    weight: Tensor
    input_scale: Tensor
    input_offset: Tensor
    quant_bias: Tensor
    deq_scale: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return linear_w8a8_static(
            x,
            self.weight,
            self.input_scale,
            self.input_offset,
            self.quant_bias,
            self.deq_scale,
        )


class RoutedExperts(Protocol):
    """Σ_e weight_e · expert_e(x), [T, H], for ``weights`` and ``ids`` [T, top_k]."""

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Experts:
    """All routed experts of one layer, stacked: ``w13`` [E, 2I, H] gate rows first, ``w2``
    [E, H, I] (int4: half the rows, packed along the output axis). Scales are F32 [E, rows, 1],
    ``*_scale_bias`` (int4 only) F32 [E, rows, any]."""

    scheme: MoeScheme
    w13: Tensor
    w2: Tensor
    w13_scale: Tensor | None = None
    w2_scale: Tensor | None = None
    w13_scale_bias: Tensor | None = None
    w2_scale_bias: Tensor | None = None

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Return Σ_e weight_e · expert_e(x), [T, H], for ``weights`` and ``ids`` [T, top_k]."""
        return moe_experts(
            x,
            weights,
            ids,
            self.w13,
            self.w2,
            scheme=self.scheme,
            w13_scale=self.w13_scale,
            w2_scale=self.w2_scale,
            w13_scale_bias=self.w13_scale_bias,
            w2_scale_bias=self.w2_scale_bias,
        )
