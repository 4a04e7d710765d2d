"""Public entries of the norms and of the rotary embedding."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from glm5_ascend.ops import checks
from glm5_ascend.ops.dispatch import load
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.norm_rope import reference

# Positions of one table that is kept.
_FEW = 16


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, backend: str = "auto") -> Tensor:
    """x / sqrt(mean(x^2) + eps) times ``weight``.

    Args:
        x: [.., width]. F32 and F64: computed in F64, rounded once. Two-byte formats: statistics in
            F32, rounded to x's dtype before the weight is multiplied.
        weight: [width].

    Returns:
        [.., width] in x's dtype.
    """
    if weight.shape != x.shape[-1:]:
        raise ArgumentError(f"weight {tuple(weight.shape)} does not fit x {tuple(x.shape)}")
    module = load("norm_rope", backend, x)
    out: Tensor = module.rms_norm(x, weight, eps)
    return out


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6, *, backend: str = "auto"
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias in F32 (F64 for F64), rounded once.

    Args:
        x: [.., width].
        weight: [width].
        bias: [width]; the indexer's k_norm has one.

    Returns:
        [.., width] in x's dtype.
    """
    if not weight.shape == bias.shape == x.shape[-1:]:
        raise ArgumentError(f"weight {tuple(weight.shape)} does not fit x {tuple(x.shape)}")
    module = load("norm_rope", backend, x)
    out: Tensor = module.layer_norm(x, weight, bias, eps)
    return out


def rotary_table(positions: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """(cos, sin) F32 [T, dim / 2] of the angles positions[t] * theta^(-2j / dim).

    The angles are F32 products, as in transformers and vLLM, so that all three agree. Tables of few
    positions are kept for the other layers of a decode step: do not write to them.

    Raises:
        ArgumentError: dim is odd.
    """
    if dim % 2:
        raise ArgumentError(f"dim must be even, two for each angle, not {dim}")
    if positions.device.type == "cpu" and positions.shape[0] <= _FEW:
        return _kept_table(tuple(positions.tolist()), dim, theta)
    return reference.rotary_table(positions, dim, theta)


@lru_cache(maxsize=64)
def _kept_table(positions: tuple[int, ...], dim: int, theta: float) -> tuple[Tensor, Tensor]:
    # Tensors of inference mode could not be used outside of it.
    with torch.inference_mode(False):
        return reference.rotary_table(torch.tensor(positions, dtype=torch.int64), dim, theta)


def rotary_interleaved(
    x: Tensor,
    positions: Tensor | None = None,
    theta: float | None = None,
    *,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Rotate the pairs (x[2j], x[2j + 1]) by positions[t] * theta^(-2j / dim); pairs stay in place.

    Args:
        x: [T, .., dim], dim even.
        positions: int [T], with ``theta``; or instead
        cos, sin: [T, dim / 2] of ``rotary_table``.

    Returns:
        [T, .., dim] in x's dtype; the rotation itself is in F32 (F64 for F64).
    """
    if cos is None or sin is None:
        if positions is None or theta is None:
            raise ArgumentError("give either positions and theta, or cos and sin")
        if positions.device != x.device:
            checks.device("positions", positions, "x", x.device)
        cos, sin = rotary_table(positions, x.shape[-1], theta)
    if not cos.shape == sin.shape == (x.shape[0], x.shape[-1] // 2) or x.shape[-1] % 2:
        raise ArgumentError(f"cos {tuple(cos.shape)} does not fit x {tuple(x.shape)}")
    module = load("norm_rope", backend, x)
    out: Tensor = module.rotary_interleaved(x, cos, sin)
    return out
