"""Refinement of a rotation against the error of per-token int8 quantisation.

A token's quantisation step is its largest entry over 127, so the squared error of ``x R`` grows
with ``max_k |(x R)_k|²`` while the norm stays. The objective is the smooth stand-in
``mean_t ‖y_t‖_p² · K^(-2/p) / mean_k y_tk²``, ``y = x R``, p = 8; it is 1 when all entries of a
token have the same size and is invariant to the tokens' norms.

The search stays on the orthogonal group: with the gradient ``G``, ``A = Rᵀ G - Gᵀ R`` is skew and
``R (I + τ A / 2)⁻¹ (I - τ A / 2)`` (Cayley) is orthogonal for every step ``τ``; a step is kept only
if the objective falls. Liu et al., "SpinQuant" (2024) learn rotations by Cayley steps on the
model's loss; Wen and Yin, "A feasible method for optimization with orthogonality constraints"
(2013) for the curve and its step sizes. Everything is float64, and the result is polished to
orthogonality by Newton's iteration for the polar factor.

What is learned multiplies a rotation that is there already: ``R0 · Q``, ``Q`` block-diagonal or
dense. It may be used wherever ``R0`` may: residual stream (R1), query latent (R2), key/value latent
(R3, of no use for int8 linears), value head (R4, one for all heads).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.quant.rotation import Orthogonal

_POWER = 8
_GROW, _SHRINK = 1.5, 0.4
_SMALLEST_STEP = 1e-7
_POLISH = 3


@dataclass(frozen=True, slots=True)
class Learned:
    """A refinement.

    Attributes:
        blocks: float64 [K / block, block, block], orthogonal, the diagonal of ``Q``.
        before, after: the objective on the sample.
        steps: accepted steps.
    """

    blocks: Tensor
    before: float
    after: float
    steps: int

    def rows(self, x: Tensor) -> Tensor:
        """``x Q`` for ``x`` [.., K], in its dtype."""
        count, block, _ = self.blocks.shape
        pieces = x.reshape(-1, count, block).transpose(0, 1)
        turned = pieces @ self.blocks.to(x.dtype)
        return turned.transpose(0, 1).reshape(x.shape)

    def behind(self, base: Orthogonal) -> Orthogonal:
        """``R0 · Q`` as a rotation of the quantiser."""
        return Orthogonal(base.name, base.size, lambda x: self.rows(base.rows(x)))


def learn_rotation(
    inputs: Tensor,
    *,
    block: int | None = None,
    heads: int = 1,
    steps: int = 100,
    tokens: int = 2048,
    seed: int = 0,
) -> Learned:
    """Refine the rotation of an activation that is already in the rotated basis.

    Args:
        inputs: [T, heads · K] samples of the activation, ``x R0``; tokens of zeros are left out.
        block: size of the blocks of ``Q``, a divisor of K; None for one dense block.
        heads: parts of a token that the same ``Q`` acts on while one scale serves all of them.
        steps: steps tried at most.
        tokens: rows drawn without replacement that the objective is taken over.
        seed: of the draw; the rest is deterministic.

    Raises:
        ValueError: no tokens, or sizes that do not divide.
    """
    size, rest = divmod(inputs.shape[1], heads)
    block = size if block is None else block
    if rest or size % block:
        raise ValueError(f"{inputs.shape[1]} channels, {heads} heads and blocks of {block}")
    sample = _sample(inputs, tokens, seed).view(-1, heads, size // block, block)
    rotation = torch.eye(block, dtype=torch.float64).repeat(size // block, 1, 1)
    value, gradient = _objective(sample, rotation)
    before, step, accepted = value, 1.0, 0
    direction = torch.zeros_like(rotation)
    for _ in range(steps):
        if step < _SMALLEST_STEP:
            break
        skew = rotation.mT @ gradient
        direction = 0.8 * direction + (skew - skew.mT) / 2
        candidate = _cayley(rotation, step * direction / _size(direction))
        new, new_gradient = _objective(sample, candidate)
        if new < value:
            rotation, value, gradient = candidate, new, new_gradient
            step, accepted = step * _GROW, accepted + 1
        else:
            step, direction = step * _SHRINK, torch.zeros_like(direction)
    return Learned(_polished(rotation), before, value, accepted)


def objective(inputs: Tensor, heads: int = 1) -> float:
    """The objective of ``inputs`` [T, heads · K] as they are."""
    count = inputs.shape[1] // heads
    sample = _sample(inputs, len(inputs), 0).view(-1, heads, 1, count)
    return _objective(sample, torch.eye(count, dtype=torch.float64)[None])[0]


def _sample(inputs: Tensor, tokens: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(inputs), generator=generator)[:tokens].sort().values
    rows = inputs[chosen].double()
    power = rows.square().mean(1, keepdim=True)
    rows = rows[power[:, 0] > 0] / power[power[:, 0] > 0].sqrt()
    if not len(rows):
        raise ValueError("a rotation cannot be learned without tokens")
    return rows


def _objective(sample: Tensor, rotation: Tensor) -> tuple[float, Tensor]:
    """Value and gradient; ``sample`` [T, heads, blocks, block] of mean square 1 per token."""
    turned = torch.einsum("thkb,kbc->thkc", sample, rotation)
    size = turned[0].numel()
    cubed = turned.abs().pow(_POWER - 1)
    total = (cubed * turned.abs()).flatten(1).sum(1) / size
    value = total.pow(2 / _POWER)
    outer = (2 / size / len(sample)) * total.pow(2 / _POWER - 1)
    slope = cubed * turned.sign() * outer.view(-1, 1, 1, 1)
    return float(value.mean()), torch.einsum("thkb,thkc->kbc", sample, slope)


def _cayley(rotation: Tensor, skew: Tensor) -> Tensor:
    identity = torch.eye(skew.shape[-1], dtype=torch.float64)
    step: Tensor = torch.linalg.solve(identity + skew / 2, identity - skew / 2)
    return rotation @ step


def _size(direction: Tensor) -> Tensor:
    """Largest spectral norm bound of the blocks, so that a step of 1 turns by at most a radian."""
    return direction.abs().sum(-1).amax().clamp_min(2.0**-100)


def _polished(rotation: Tensor) -> Tensor:
    identity = torch.eye(rotation.shape[-1], dtype=torch.float64)
    for _ in range(_POLISH):
        rotation = rotation @ (1.5 * identity - 0.5 * (rotation.mT @ rotation))
    return rotation
