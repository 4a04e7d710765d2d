"""What mlapo is held against: the library's matrix products alone, and a chain of torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from glm5_ascend.ops.verify.compare import Figures, worst
from tools.bench.case import Absent, Check, Contestant, near
from tools.bench.mlapo_data import EPS, HEADS, LATENT, NOPE, Q_LORA, ROPE, Data
from tools.bench.peers import PackedLinear, vllm

Linear = Callable[[Tensor], Tensor]


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 codes and F32 scales [T, 1], one per token."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / 127
    return (wide / scale).round_().to(torch.int8), scale


def unsigned(codes: Tensor) -> Tensor:
    """The codes + 128, as uint8."""
    return codes.view(torch.uint8) ^ 128


def absorbed(nope: Tensor, weight: Tensor) -> Tensor:
    """[T, heads, latent] of nope [T, heads, d] and weight [heads, d, latent]."""
    return torch.bmm(nope.transpose(0, 1), weight).transpose(0, 1)


def gemms(data: Data) -> Iterator[Contestant | Absent]:
    """The four matrix products on codes made beforehand, by each library that has them.

    Four as in the operator's arguments: q and kv have a down projection each.
    """
    weights, tokens = data.weights, data.tokens
    codes = quantise(data.x)[0], quantise(torch.randn(tokens, Q_LORA))[0]
    query = torch.randn(tokens, HEADS, NOPE).bfloat16()
    matrices = weights.down[:Q_LORA], weights.down[Q_LORA:], weights.up
    check = _sums(matrices, codes, query, weights.absorb)

    def products(linears: Sequence[Linear], a: Tensor, b: Tensor) -> Callable[[], Any]:
        q, kv, up = linears
        return lambda: (q(a), kv(a), up(b), absorbed(query, weights.absorb))

    plain = [lambda c, w=w: torch._int_mm(c, w.T) for w in matrices]
    yield Contestant("GEMMs: torch _int_mm, bmm", "library", products(plain, *codes), check)
    packed = [PackedLinear(w, torch.ones(len(w)), tokens) for w in matrices]
    run = products(packed, *map(unsigned, codes))
    yield Contestant("GEMMs: torch oneDNN prepacked, bmm", "library", run, check)

    def handlers(kernels: Any) -> Callable[[], Any]:
        return products([_vllm_linear(kernels, w, tokens) for w in matrices], *codes)

    yield vllm("GEMMs: vllm onednn_scaled_mm, bmm", handlers, check)

    def with_quant(kernels: Any) -> Callable[[], Any]:
        linears = [_vllm_with_quant(kernels, w) for w in matrices]
        return products(linears, *(each.bfloat16() for each in codes))

    yield vllm("GEMMs: vllm int8_scaled_mm_with_quant", with_quant, check)


def _vllm_linear(kernels: Any, weight: Tensor, tokens: int) -> Linear:
    ones = torch.ones(1, len(weight)), torch.ones(tokens, 1)
    handler = torch.tensor(
        kernels.create_onednn_scaled_mm_handler(weight.T, ones[0], torch.float32, True, False, 32)
    )
    out = torch.empty(tokens, len(weight))

    def run(codes: Tensor) -> Tensor:
        kernels.onednn_scaled_mm(out, codes, ones[1], None, None, None, handler)
        return out

    return run


def _vllm_with_quant(kernels: Any, weight: Tensor) -> Linear:
    """Takes bf16 and quantises it itself, to the same codes if a row's largest is 127."""
    packed, ones = kernels.convert_weight_packed(weight), torch.ones(len(weight))

    def run(x: Tensor) -> Tensor:
        result: Tensor = kernels.int8_scaled_mm_with_quant(
            x, packed, ones, None, torch.bfloat16, True
        )
        return result

    return run


def _sums(
    matrices: Sequence[Tensor], codes: tuple[Tensor, Tensor], query: Tensor, absorb: Tensor
) -> Check:
    inputs = codes[0], codes[0], codes[1]
    exact = [torch._int_mm(c, w.T) for c, w in zip(inputs, matrices, strict=True)]
    checks = [near(each) for each in (*exact, absorbed(query.float(), absorb.float()))]

    def check(actual: tuple[Tensor, ...]) -> Figures:
        return worst(one(each) for one, each in zip(checks, actual, strict=True))

    return check


class Eager:
    """The operator as a chain of torch functions, its int8 products prepacked."""

    def __init__(self, data: Data) -> None:
        weights, self._tokens = data.weights, data.tokens
        self._down = PackedLinear(weights.down, weights.down_scale, data.tokens)
        self._up = PackedLinear(weights.up, weights.up_scale, data.tokens)
        self._absorb = weights.absorb
        self._cos, self._sin = data.angles

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(query, its rotated part, latent row, rotated key) of x [T, hidden], bf16."""
        codes, scale = quantise(x)
        down = (self._down(unsigned(codes)) * scale).bfloat16()
        q, latent, key = down[:, :Q_LORA], down[:, Q_LORA:-ROPE], down[:, -ROPE:]
        codes, scale = quantise(rms_norm(q, [Q_LORA], None, EPS))
        up = (self._up(unsigned(codes)) * scale).bfloat16().view(self._tokens, HEADS, -1)
        query = absorbed(up[..., :NOPE], self._absorb)
        cos, sin = self._cos, self._sin
        rope = _rotate(up[..., NOPE:], cos[:, None], sin[:, None])
        return query, rope, rms_norm(latent, [LATENT], None, EPS), _rotate(key, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2].float(), x[..., 1::2].float()
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
    return turned.flatten(-2).bfloat16()
