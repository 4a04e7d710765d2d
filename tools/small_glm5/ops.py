"""Hand-differentiated building blocks that keep a single CPU core busy in BF16."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor

torch._dynamo.config.recompile_limit = 64

P = ParamSpec("P")
R = TypeVar("R")
BLOCK = 128  # query rows handled together by the causal attention


def fused(fn: Callable[P, R]) -> Callable[P, R]:
    """Compile an element-wise function with inductor unless SMALL_GLM5_COMPILE=0."""
    if os.environ.get("SMALL_GLM5_COMPILE", "1") == "0":
        return fn
    compiled: Callable[P, R] = torch.compile(fn, dynamic=False)
    return compiled


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis with F32 statistics; returns ``weight``'s dtype."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * weight.float()).to(weight.dtype)


def rope_tables(length: int, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return F32 cos and sin of shape [length, dim / 2]."""
    inv = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * inv
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate interleaved pairs of the last axis; ``cos``/``sin`` broadcast to [..., dim / 2]."""
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


def causal_bias(t: int, dtype: torch.dtype) -> Tensor:
    """Additive causal mask [1,1,T,T]."""
    return torch.full((t, t), -torch.inf, dtype=dtype).triu_(1)[None, None]


def _silu_mul(gu: Tensor) -> Tensor:
    """silu(gate)·up of [N, 2·I] -> [N, I]."""
    gate, up = gu.float().chunk(2, -1)
    return (F.silu(gate) * up).to(gu.dtype)


def _silu_mul_grad(gu: Tensor, g: Tensor) -> Tensor:
    """Gradient of :func:`_silu_mul`."""
    gate, up = gu.float().chunk(2, -1)
    s, gf = torch.sigmoid(gate), g.float()
    return torch.cat((gf * up * s * (1 + gate * (1 - s)), gf * gate * s), -1).to(gu.dtype)


silu_mul, silu_mul_grad = fused(_silu_mul), fused(_silu_mul_grad)


class HeadLoss(torch.autograd.Function):
    """Mean cross entropy of a linear head, its gradients computed chunk-wise in the forward."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, head: Tensor, labels: Tensor) -> Tensor:
        """h [N,H], head [V,H], labels [N] (-1 is ignored) -> scalar mean loss in nats."""
        count = max(int((labels >= 0).sum()), 1)
        total = torch.zeros(())
        dh, dhead = torch.empty_like(h), torch.zeros(head.shape)
        for lo in range(0, h.shape[0], 1024):
            hc, lc = h[lo : lo + 1024], labels[lo : lo + 1024]
            logits = (hc @ head.t()).float()
            valid = (lc >= 0).float()[:, None]
            safe = lc.clamp(min=0)[:, None]
            logp = torch.log_softmax(logits, -1)
            total -= (logp.gather(1, safe) * valid).sum()
            grad = logp.exp_()
            grad.scatter_add_(1, safe, torch.full_like(valid, -1.0))
            grad = (grad * (valid / count)).to(h.dtype)
            dh[lo : lo + 1024] = grad @ head
            dhead += grad.t() @ hc
        ctx.save_for_backward(dh, dhead.to(head.dtype))
        return total / count

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Scale the stored gradients."""
        dh, dhead = ctx.saved_tensors
        return dh * grads[0].to(dh.dtype), dhead * grads[0].to(dhead.dtype), None


def head_loss(h: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Typed call of :class:`HeadLoss`."""
    out: Tensor = HeadLoss.apply(h, head, labels)  # type: ignore[no-untyped-call]
    return out
