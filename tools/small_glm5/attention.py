"""Blocked causal softmax attention with a hand-written backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from small_glm5.ops import BLOCK, fused


def _probs(s: Tensor, bias: Tensor, heads: int, want_mean: bool) -> tuple[Tensor, Tensor | None]:
    """Masked softmax: scores [B*H,Q,K], additive bias [1 or B,1,Q,K] -> same, head mean [B,Q,K]."""
    x = s.float().view(-1, heads, *s.shape[1:]) + bias
    p = torch.softmax(x, -1)
    return p.to(s.dtype).view(s.shape), p.mean(1) if want_mean else None


def _score_grad(dp: Tensor, delta: Tensor, p: Tensor, scale: float) -> Tensor:
    """Gradient of the scaled softmax input."""
    return ((dp.float() - delta.float()) * p.float() * scale).to(p.dtype)


probs_fast, score_grad = fused(_probs), fused(_score_grad)


class Attention(torch.autograd.Function):
    """Softmax attention by query blocks; also returns the head-averaged probabilities."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor,
        scale: float,
        heads: int,
        want_mean: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """q, k [B*H,T,D], v [B*H,T,V], bias [1 or B,1,T,T] -> [B*H,T,V], mean [B,T,T]."""
        n, t, _ = q.shape
        out = torch.empty(n, t, v.shape[-1], dtype=q.dtype)
        mean = torch.zeros(n // heads, t, t) if want_mean else None
        probs = []
        qs = q * scale
        for lo in range(0, t, BLOCK):
            hi = min(lo + BLOCK, t)
            s = torch.bmm(qs[:, lo:hi], k[:, :hi].transpose(1, 2))
            p, m = probs_fast(s, bias[:, :, lo:hi, :hi], heads, want_mean)
            out[:, lo:hi] = torch.bmm(p, v[:, :hi])
            if mean is not None and m is not None:
                mean[:, lo:hi, :hi] = m
            probs.append(p)
        ctx.save_for_backward(q, k, v, out, *probs)
        ctx.scale = scale
        if mean is not None:
            ctx.mark_non_differentiable(mean)
        return out, mean

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return gradients of q, k and v."""
        q, k, v, out, *probs = ctx.saved_tensors
        g = grads[0].contiguous()
        t = q.shape[1]
        delta = (g * out).sum(-1, keepdim=True)
        dq = torch.empty_like(q)
        dk = torch.zeros(k.shape, dtype=torch.float32)
        dv = torch.zeros(v.shape, dtype=torch.float32)
        for i, lo in enumerate(range(0, t, BLOCK)):
            hi = min(lo + BLOCK, t)
            p, gb = probs[i], g[:, lo:hi]
            dv[:, :hi] += torch.bmm(p.transpose(1, 2), gb)
            dp = torch.bmm(gb, v[:, :hi].transpose(1, 2))
            ds = score_grad(dp, delta[:, lo:hi], p, ctx.scale)
            dq[:, lo:hi] = torch.bmm(ds, k[:, :hi])
            dk[:, :hi] += torch.bmm(ds.transpose(1, 2), q[:, lo:hi])
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, heads: int, want_mean: bool
) -> tuple[Tensor, Tensor | None]:
    """Typed call of :class:`Attention`."""
    out: tuple[Tensor, Tensor | None] = Attention.apply(  # type: ignore[no-untyped-call]
        q, k, v, bias, scale, heads, want_mean
    )
    return out
