"""Routed experts: sorted, padded spans and one small GEMM per expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from small_glm5.ops import fused, silu_mul, silu_mul_grad


def _combine(yt: Tensor, weight: Tensor) -> Tensor:
    """Weighted sum over the chosen experts: [N,K,H], F32 [N,K] -> [N,H]."""
    return (yt.float() * weight[..., None]).sum(1).to(yt.dtype)


def _combine_grad(yt: Tensor, weight: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of :func:`_combine` with respect to ``yt`` and ``weight``."""
    gf = g.float()[:, None]
    return (gf * weight[..., None]).to(yt.dtype), (yt.float() * gf).sum(-1)


combine, combine_grad = fused(_combine), fused(_combine_grad)


def _plan(flat: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor, list[tuple[int, int, int]]]:
    """Sort choices [N·K] by expert into spans padded to multiples of 64 rows.

    Few distinct GEMM shapes keep oneDNN's kernel cache hot. The total is fixed for fixed N·K.
    Returns source choice per slot, slot per choice, padding slots and (expert, begin, end).
    """
    total = flat.numel()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=experts)
    padded = (counts + 63) // 64 * 64
    begin, first = padded.cumsum(0) - padded, counts.cumsum(0) - counts
    dest = torch.arange(total) + (begin - first)[flat[order]]
    size = (total + 63) // 64 * 64 + 64 * experts
    src = torch.full((size,), -1, dtype=torch.long)
    src[dest] = order
    pads = (src < 0).nonzero()[:, 0]
    slot = torch.empty_like(order)
    slot[order] = dest
    ends = (begin + padded).tolist()
    spans = [(e, b - p, b) for e, (p, b) in enumerate(zip(padded.tolist(), ends, strict=True)) if p]
    return src.clamp_(min=0), slot, pads, spans


class Experts(torch.autograd.Function):
    """Routed experts: rows sorted by expert, one small GEMM per expert and projection."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, index: Tensor, gate_up: Tensor, down: Tensor
    ) -> Tensor:
        """x [N,H], weight F32 [N,K], index [N,K], gate_up [E,2I,H], down [E,H,I] -> [N,H]."""
        n, k = index.shape
        src, slot, pads, spans = _plan(index.reshape(-1), gate_up.shape[0])
        xs = x[src // k]
        gu = torch.zeros(len(src), gate_up.shape[1], dtype=x.dtype)
        ys = torch.empty(len(src), x.shape[1], dtype=x.dtype)
        for e, a, b in spans:
            torch.mm(xs[a:b], gate_up[e].t(), out=gu[a:b])
        act = silu_mul(gu)
        for e, a, b in spans:
            torch.mm(act[a:b], down[e].t(), out=ys[a:b])
        yt = ys[slot].view(n, k, -1)
        ctx.save_for_backward(weight, gate_up, down, src, slot, pads, xs, gu, act, yt)
        ctx.spans = spans
        out: Tensor = combine(yt, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return gradients of x, weight, gate_up and down."""
        weight, gate_up, down, src, slot, pads, xs, gu, act, yt = ctx.saved_tensors
        n, k = weight.shape
        dyt, dweight = combine_grad(yt, weight, grads[0])
        dys = dyt.view(n * k, -1)[src].index_fill_(0, pads, 0.0)
        dact = torch.zeros_like(act)
        dgate_up, ddown = torch.zeros_like(gate_up), torch.zeros_like(down)
        for e, a, b in ctx.spans:
            torch.mm(dys[a:b], down[e], out=dact[a:b])
            torch.mm(dys[a:b].t(), act[a:b], out=ddown[e])
        dgu = silu_mul_grad(gu, dact)
        dxs = torch.empty_like(xs)
        for e, a, b in ctx.spans:
            torch.mm(dgu[a:b], gate_up[e], out=dxs[a:b])
            torch.mm(dgu[a:b].t(), xs[a:b], out=dgate_up[e])
        dx = dxs[slot].view(n, k, -1).float().sum(1).to(xs.dtype)
        return dx, dweight, None, dgate_up, ddown


def mix_experts(x: Tensor, weight: Tensor, index: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Typed call of :class:`Experts`."""
    out: Tensor = Experts.apply(x, weight, index, gate_up, down)  # type: ignore[no-untyped-call]
    return out
