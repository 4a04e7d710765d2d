"""Index scores of the lightning indexer, top-k selection and the KL loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from small_glm5.ops import BLOCK, causal_bias, fused


def _index_add(acc: Tensor, s: Tensor, w: Tensor) -> Tensor:
    """acc + w·relu(s) with acc F32 [B,Q,K], s [B,Q,K], w F32 [B,Q]."""
    return acc + torch.relu(s.float()) * w[..., None]


def _index_grad(s: Tensor, g: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of w·relu(s) with respect to s [B,Q,K] and w [B,Q], g [B,Q,K]."""
    pos, gf = torch.relu(s.float()), g.float()
    return torch.where(pos > 0, gf * w[..., None], 0.0).to(s.dtype), (pos * gf).sum(-1)


index_add, index_grad = fused(_index_add), fused(_index_grad)


class IndexScores(torch.autograd.Function):
    """score(t,s) = sum_h w_h(t)·relu(q_h(t)·k(s)), by query blocks and heads."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, w: Tensor) -> Tensor:
        """q [B,I,T,D] (scaled), k [B,T,D], w F32 [B,I,T] -> F32 [B,T,T], -inf where s > t."""
        b, heads, t, _ = q.shape
        out = torch.full((b, t, t), -torch.inf)
        for lo in range(0, t, BLOCK):
            hi = min(lo + BLOCK, t)
            kt = k[:, :hi].transpose(1, 2)
            acc = torch.zeros(b, hi - lo, hi)
            for h in range(heads):
                acc = index_add(acc, torch.bmm(q[:, h, lo:hi], kt), w[:, h, lo:hi])
            out[:, lo:hi, :hi] = acc
        out += causal_bias(t, out.dtype)[0]
        ctx.save_for_backward(q, k, w)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Recompute the dots and return gradients of q, k and w."""
        q, k, w = ctx.saved_tensors
        dq, dw = torch.empty_like(q), torch.empty_like(w)
        dk = torch.zeros(k.shape)
        for lo in range(0, q.shape[2], BLOCK):
            hi = min(lo + BLOCK, q.shape[2])
            kb, gb = k[:, :hi], grads[0][:, lo:hi, :hi].to(k.dtype)
            kt = kb.transpose(1, 2)
            for h in range(q.shape[1]):
                s = torch.bmm(q[:, h, lo:hi], kt)
                ds, dw[:, h, lo:hi] = index_grad(s, gb, w[:, h, lo:hi])
                dq[:, h, lo:hi] = torch.bmm(ds, kb)
                dk[:, :hi] += torch.bmm(ds.transpose(1, 2), q[:, h, lo:hi])
        return dq, dk.to(k.dtype), dw


def _kl(scores: Tensor, target: Tensor, allowed: Tensor) -> Tensor:
    """Mean over queries of KL(target || softmax of scores over ``allowed``), all [.,T,T]."""
    logq = torch.log_softmax(scores.masked_fill(~allowed, -torch.inf), -1)
    logq = logq.masked_fill(~allowed, 0.0)
    logp = torch.log(target.clamp(min=1e-30))
    return (target * (logp - logq)).sum(-1).mean()


kl_divergence = fused(_kl)


def select(scores: Tensor, topk: int) -> Tensor:
    """Boolean [B,T,T]: the ``topk`` best visible keys of each query (all of them while fewer)."""
    t = scores.shape[-1]
    index = scores.topk(min(topk, t), -1).indices
    chosen = torch.zeros(scores.shape, dtype=torch.bool).scatter_(-1, index, True)
    return chosen & torch.ones(t, t, dtype=torch.bool).tril()


def index_score(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """Typed call of :class:`IndexScores`."""
    out: Tensor = IndexScores.apply(q, k, w)  # type: ignore[no-untyped-call]
    return out
