"""Norms and rotary embedding in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[.., width]; see api."""
    weight = weight.to(x.dtype)
    if x.dtype in (torch.float32, torch.float64):
        exact = x.double()
        factor = torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
        return (exact * factor * weight.double()).to(x.dtype)
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """[.., width]; see api."""
    wide = _wide(x)
    w, b = weight.to(wide.dtype), bias.to(wide.dtype)
    return functional.layer_norm(wide, wide.shape[-1:], w, b, eps).to(x.dtype)


def rotary_table(positions: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """(cos, sin) F32 [T, dim / 2]."""
    step = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    angle = positions.float()[:, None] * (1.0 / theta**step)
    return angle.cos(), angle.sin()


def rotary_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[T, .., dim] rotated by cos, sin [T, dim / 2]."""
    wide = _wide(x).view(*x.shape[:-1], -1, 2)
    shape = (x.shape[0], *[1] * (x.ndim - 2), -1)
    c, s = cos.to(wide.dtype).view(shape), sin.to(wide.dtype).view(shape)
    even, odd = wide.unbind(-1)
    return torch.stack((even * c - odd * s, odd * c + even * s), -1).flatten(-2).to(x.dtype)
