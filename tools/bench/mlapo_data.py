"""Weights and inputs of MLA pre-processing at the size of one GLM-5 layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from glm5_ascend.ops.mlapo import mlapo

HIDDEN, Q_LORA, LATENT, ROPE, HEADS, NOPE = 6144, 2048, 512, 64, 64, 192
DOWN, UP = Q_LORA + LATENT + ROPE, HEADS * (NOPE + ROPE)
EPS = 1e-5
FIRST_SLOT = 64


@dataclass(frozen=True)
class Weights:
    """One layer: int8 down [2624, 6144] and up [16384, 2048], their F32 scales, bf16 absorb."""

    down: Tensor
    down_scale: Tensor
    up: Tensor
    up_scale: Tensor
    absorb: Tensor

    @classmethod
    def draw(cls) -> Weights:
        """Random codes; the scales keep the activations near one."""
        generator = torch.Generator().manual_seed(0)

        def codes(rows: int, columns: int) -> tuple[Tensor, Tensor]:
            drawn = torch.randint(-127, 128, (rows, columns), generator=generator).to(torch.int8)
            return drawn, (torch.rand(rows, generator=generator) + 0.5) / 73 / columns**0.5

        absorb = torch.randn(HEADS, NOPE, LATENT, generator=generator) / NOPE**0.5
        return cls(*codes(DOWN, HIDDEN), *codes(UP, Q_LORA), absorb.bfloat16())


@dataclass(frozen=True)
class Data:
    """``tokens`` layer inputs x bf16 [T, 6144], angles [T, 32], and where their rows go."""

    weights: Weights
    tokens: int

    @cached_property
    def x(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.tokens)
        return torch.randn(self.tokens, HIDDEN, generator=generator).bfloat16()

    @cached_property
    def angles(self) -> tuple[Tensor, Tensor]:
        angle = torch.arange(self.tokens)[:, None] * torch.logspace(0, -4, ROPE // 2)
        return angle.cos(), angle.sin()

    def project(self, backend: str) -> Callable[[], tuple[Tensor, ...]]:
        """The public function; returns its results and both caches [4, 128, 1, width]."""
        w = self.weights
        caches = [torch.zeros(4, 128, 1, width, dtype=torch.bfloat16) for width in (LATENT, ROPE)]
        slots = torch.arange(self.tokens) + FIRST_SLOT
        ones = [torch.ones(width, dtype=torch.bfloat16) for width in (Q_LORA, LATENT)]
        cos, sin = self.angles

        def run() -> tuple[Tensor, ...]:
            results = mlapo(
                self.x, w.down[:Q_LORA].T, w.up.T, w.absorb, w.down[Q_LORA:].T,
                ones[0], ones[1], sin, cos, caches[0], caches[1],
                cache_index=slots,
                dequant_scale_w_dq=w.down_scale[:Q_LORA], dequant_scale_w_uq_qr=w.up_scale,
                dequant_scale_w_dkv_kr=w.down_scale[Q_LORA:], weight_quant_mode=2,
                rmsnorm_epsilon_cq=EPS, rmsnorm_epsilon_ckv=EPS, query_norm_flag=True,
                backend=backend,
            )  # fmt: skip
            return *results, *caches

        return run


def written(cache: Tensor, tokens: int) -> Tensor:
    """The rows [T, width] that a call wrote into its cache."""
    return cache.view(-1, cache.shape[-1])[FIRST_SLOT : FIRST_SLOT + tokens]
