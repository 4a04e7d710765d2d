"""MLA pre-processing of one GLM-5 layer: inputs, F64, the project's contestants, cuBLAS's chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops import mlapo
from glm5_ascend.ops.verify.compare import Figures, worst
from tools.gpu_bench import draw
from tools.gpu_bench.costs import HIDDEN, LATENT, NOPE, Q_LORA, ROPE
from tools.gpu_bench.draw import PAGE
from tools.gpu_bench.entry import Contestant, Ready, own
from tools.gpu_bench.shapes import Shape

DOWN = Q_LORA + LATENT + ROPE
EPS = 1e-5
# torch._int_mm takes no fewer rows on a GPU.
_LEAST_ROWS = 32


@dataclass(frozen=True)
class Set:
    """x BF16 [tokens, 6144] with one layer's weights: down [2624, 6144], up [heads * 256, 2048] as
    BF16, or int8 with F32 scales of their rows; absorb BF16 [heads, 192, 512]."""

    x: Tensor
    down: Tensor
    up: Tensor
    absorb: Tensor
    down_scale: Tensor | None
    up_scale: Tensor | None


class Problem:
    """Tokens whose rows go to neighbouring slots from 0 on."""

    def __init__(self, shape: Shape, device: str, seed: int, backend: str = "triton") -> None:
        self.shape, self.backend = shape, backend
        gen = draw.generator(device, seed)
        angle = torch.arange(shape.tokens)[:, None] * torch.logspace(0, -4, ROPE // 2)
        self.cos, self.sin = angle.cos().to(device), angle.sin().to(device)
        self.slots = torch.arange(shape.tokens, device=device)
        self.sets = [self._draw(gen) for _ in range(draw.input_sets(shape.cost.floor_us))]

    def _draw(self, gen: torch.Generator) -> Set:
        shape = self.shape
        up_rows = shape.heads * (NOPE + ROPE)
        down = draw.normal(gen, DOWN, HIDDEN) / HIDDEN**0.5
        up = draw.normal(gen, up_rows, Q_LORA) / Q_LORA**0.5
        absorb = draw.normal(gen, shape.heads, NOPE, LATENT) / NOPE**0.5
        scales: tuple[Tensor | None, Tensor | None] = None, None
        if shape.dtype == "int8":
            (down, first), (up, second) = draw.codes(down, "int8"), draw.codes(up, "int8")
            scales = first, second
        return Set(draw.normal(gen, shape.tokens, HIDDEN), down, up, absorb, *scales)

    def caches(self) -> list[Tensor]:
        """Latent and rotated rows, BF16 [pages, 64, 1, 512 and 64], zeros."""
        pages = -(-self.shape.tokens // PAGE)
        like = self.sets[0].absorb
        return [like.new_zeros(pages, PAGE, 1, width) for width in (LATENT, ROPE)]

    @cached_property
    def exact(self) -> list[tuple[Tensor, ...]]:
        """F64 (query, query_rope, latent rows, rotated keys) of every set; activations are rounded
        to int8 where the operator does that."""
        return [self._exact(each) for each in self.sets]

    def _exact(self, each: Set) -> tuple[Tensor, ...]:
        both = _linear(each.x.double(), each.down, each.down_scale)
        compressed = _norm(both[:, :Q_LORA])
        full = _linear(compressed, each.up, each.up_scale).unflatten(1, (self.shape.heads, -1))
        query = torch.einsum("thd,hdl->thl", full[..., :NOPE], each.absorb.double())
        rotated = self._rotated(full[..., NOPE:])
        latent, key = both[:, Q_LORA:].split([LATENT, ROPE], 1)
        return query, rotated, _norm(latent), self._rotated(key[:, None])[:, 0]

    def _rotated(self, x: Tensor) -> Tensor:
        """Neighbouring pairs of x [tokens, heads, 64] turned by the token's angles."""
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = (each[:, None].to(x.dtype) for each in (self.cos, self.sin))
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def check(self, number: int, found: Sequence[Tensor]) -> Figures:
        """Whether query, query_rope and the rows of both caches are right."""
        expected = self.exact[number]
        names = "query", "query_rope", "latent rows", "rotated keys"
        given = [f.reshape(e.shape) for f, e in zip(found, expected, strict=True)]
        return worst(map(draw.near, given, expected, names))

    def contestants(self) -> Iterator[Contestant]:
        """The project's, and the chain of library products and small kernels."""
        shape = self.shape
        yield from own(self._public, shape.dtype, shape.heads)
        yield Contestant(
            f"cuBLAS chain, {shape.dtype}", "torch", shape.dtype, shape.heads, self._chain
        )

    def _public(self) -> tuple[list[Callable[[], Any]], Any]:
        caches = [self.caches() for _ in self.sets]

        def check(number: int, result: Any) -> Figures:
            if isinstance(result, tuple):
                query, rotated = result[:2]
            else:
                query, rotated = result.query, result.query_rope
            return self.check(number, [query, rotated, *self._written(caches[number])])

        calls = [self._call(*pair) for pair in zip(self.sets, caches, strict=True)]
        return calls, check

    def _written(self, caches: Sequence[Tensor]) -> list[Tensor]:
        return [cache.view(-1, cache.shape[-1])[self.slots] for cache in caches]

    def _call(self, each: Set, caches: Sequence[Tensor]) -> Callable[[], Any]:
        ones = [each.absorb.new_ones(width) for width in (Q_LORA, LATENT)]
        scales: dict[str, Any] = {}
        if each.down_scale is not None:
            scales = {
                "dequant_scale_w_dq": each.down_scale[:Q_LORA],
                "dequant_scale_w_uq_qr": each.up_scale,
                "dequant_scale_w_dkv_kr": each.down_scale[Q_LORA:],
                "weight_quant_mode": 2,
            }
        return lambda: mlapo(
            each.x, each.down[:Q_LORA].T, each.up.T, each.absorb, each.down[Q_LORA:].T, *ones,
            self.sin, self.cos, *caches, cache_index=self.slots, rmsnorm_epsilon_cq=EPS,
            rmsnorm_epsilon_ckv=EPS, backend=self.backend, **scales,
        )  # fmt: skip

    def _chain(self) -> Ready:
        """Library products (both of x in one), and torch for what lies between them."""
        caches = [self.caches() for _ in self.sets]

        def run(each: Set, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
            both = _product(each.x, each.down, each.down_scale)
            compressed, latent, key = both.split([Q_LORA, LATENT, ROPE], 1)
            full = _product(_norm(compressed), each.up, each.up_scale)
            full = full.unflatten(1, (self.shape.heads, -1))
            query = torch.bmm(full[..., :NOPE].transpose(0, 1), each.absorb).transpose(0, 1)
            turned = self._rotated(full[..., NOPE:])
            rows[0].view(-1, LATENT).index_copy_(0, self.slots, _norm(latent))
            rows[1].view(-1, ROPE).index_copy_(0, self.slots, self._rotated(key[:, None])[:, 0])
            return query, turned

        def check(number: int, result: tuple[Tensor, Tensor]) -> Figures:
            return self.check(number, [*result, *self._written(caches[number])])

        calls = [
            lambda each=each, rows=rows: run(each, rows)
            for each, rows in zip(self.sets, caches, strict=True)
        ]
        return Ready(calls, check, torch.__version__)


def _norm(x: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()).to(x.dtype)


def _linear(x: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    """F64 product with a [N, K] weight; an int8 one meets activations rounded per token."""
    if scale is None:
        return x.bfloat16().double() @ weight.double().T
    step = x.bfloat16().double().abs().amax(-1, keepdim=True) / 127
    codes = (x.bfloat16().double() / step).round()
    return codes @ weight.double().T * scale.double() * step


def _product(x: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    """BF16 product of the library, with codes and scales around it where the weight is int8."""
    if scale is None:
        return x @ weight.T
    step = x.float().abs().amax(-1, keepdim=True) / 127
    codes = (x.float() / step).round().to(torch.int8)
    padded = torch.nn.functional.pad(codes, (0, 0, 0, max(0, _LEAST_ROWS - len(x))))
    sums = torch._int_mm(padded, weight.T)[: len(x)]
    return (sums.float() * scale * step).bfloat16()
