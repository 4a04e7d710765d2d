"""MLA pre-processing once more, in NumPy: weights, formula, and the rounding between stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify import formula
from glm5_ascend.ops.verify.formula import Array

Round = Callable[[Array], Array]


@dataclass(frozen=True)
class Sizes:
    """hidden, q_lora, heads, nope, rope and latent widths."""

    hidden: int
    q_lora: int
    heads: int
    nope: int
    rope: int = 64
    latent: int = 512

    def __str__(self) -> str:
        return f"{self.hidden}-{self.q_lora}-{self.heads}x{self.nope}+{self.rope}-{self.latent}"


class Static(NamedTuple):
    """Scale and offset of statically quantised activations."""

    scale: float
    offset: int


@dataclass(frozen=True)
class Projection:
    """y = x W: ``weight`` F64 [K, N] as the formula uses it, and int8 codes with scales [N].

    ``corrected`` False is the mistake of leaving the offset of static activations in the sums.
    """

    weight: Array
    codes: Array | None = None
    scale: Array | None = None
    static: Static | None = None
    corrected: bool = True

    def apply(self, x: Array, codes: Array | None = None, x_scale: Array | None = None) -> Array:
        """[T, N] in the arithmetic of x; int8 if there are codes, given or made of x."""
        if self.codes is None or self.scale is None:
            y: Array = x @ self.weight.astype(x.dtype)
            return y
        if codes is None:
            codes, x_scale = self.quantise(x)
        offset = self.static.offset if self.static and self.corrected else 0
        total = _product(codes - offset, self.codes)
        y = total.astype(x.dtype) * self.scale.astype(x.dtype) * x_scale
        return y

    def quantise(self, x: Array) -> tuple[Array, Array]:
        """(codes [T, K], scale [T, 1] or a number), in F32 as contracted."""
        narrow = x.astype(np.float32)
        if self.static is None:
            codes, scale = formula.quantise(narrow)
            return codes, scale.astype(x.dtype)
        scale, offset = (np.array(value, np.float32) for value in self.static)
        codes = np.rint(narrow / scale + offset).clip(-128, 127)
        return codes.astype(np.int64), scale.astype(x.dtype)


def _product(x: Array, weight: Array) -> Array:
    """Integers; F64 sums of them are exact, and BLAS has none for integers."""
    return np.rint(x.astype(np.float64) @ weight.astype(np.float64))


@dataclass(frozen=True)
class Weights:
    """All weights of one layer's pre-processing; norms in the activations' dtype."""

    down_q: Projection
    down_kv: Projection
    up_q: Projection
    absorb: Array  # [heads, nope, latent]
    gamma_q: Array
    gamma_kv: Array


@dataclass(frozen=True)
class Mistake:
    """What to do wrong."""

    half_split: bool = False
    eps: float | None = None
    raw_latent_returned: bool = False
    raw_latent_used: bool = False
    raw_cache: bool = False


CORRECT = Mistake()


class Settled(NamedTuple):
    """A q latent: values in the type of the arithmetic, or codes and their scale as well.

    Where a backend's latent lay between two numbers of its format, or between two codes, either is
    right; computed from what it returned, the queries are exact again.
    """

    values: Array
    codes: Array | None = None
    scale: Array | None = None

    def in_type(self, dtype: Any) -> Settled:
        """The same in the arithmetic of ``dtype``."""
        scale = None if self.scale is None else self.scale.astype(dtype)
        return Settled(self.values.astype(dtype), self.codes, scale)


def prologue(
    x: Array,
    codes: Array | None,
    x_scale: Array | None,
    weights: Weights,
    turn: Array,
    eps: float,
    rounded: Round = lambda v: v,
    wrong: Mistake = CORRECT,
    settled: Settled | None = None,
) -> dict[str, Array]:
    """query [T, N, L], query_rope [T, N, R], query_norm [T, Q], latent [T, L], key_rope [T, R].

    Args:
        x: [T, hidden]; its dtype is that of the arithmetic.
        codes, x_scale: of an input that comes quantised.
        turn: complex [T, R / 2], exp(i * angle).
        rounded: what happens to values between the stages.
        settled: what the queries are made of, instead of the latent computed here.
    """
    if wrong.eps is not None:
        eps = wrong.eps

    def norm(v: Array, gamma: Array) -> Array:
        normed = rounded(formula.rms_norm(v, np.ones(1, v.dtype), eps))
        return rounded(normed * gamma.astype(v.dtype))

    raw = rounded(weights.down_q.apply(x, codes, x_scale))
    latent_q = norm(raw, weights.gamma_q)
    both = rounded(weights.down_kv.apply(x, codes, x_scale))
    heads, nope, latent = weights.absorb.shape
    source = Settled(raw if wrong.raw_latent_used else latent_q) if settled is None else settled
    query = rounded(weights.up_q.apply(*source))
    query = query.reshape(len(x), heads, -1)
    turn = turn.astype(np.result_type(x.dtype, np.complex64))
    absorbed = np.einsum("thd,hdl->thl", query[..., :nope], weights.absorb.astype(x.dtype))
    turned = formula.turn(query[..., nope:], turn[:, None], half_split=wrong.half_split)
    return {
        "query": absorbed,
        "query_rope": turned,
        "query_norm": raw if wrong.raw_latent_returned else latent_q,
        "latent": both[:, :latent] if wrong.raw_cache else norm(both[:, :latent], weights.gamma_kv),
        "key_rope": formula.turn(both[:, latent:], turn, half_split=wrong.half_split),
    }


def rounding(dtype: torch.dtype) -> Round:
    """To ``dtype`` and back."""
    return lambda v: torch.from_numpy(v).to(dtype).to(torch.from_numpy(v[:0]).dtype).numpy()


def draw(
    sizes: Sizes, dtype: torch.dtype, int8: tuple[bool, bool], static: bool, seed: int
) -> Weights:
    """Normal weights; ``int8``: of the two projections of x, of the one of the q latent."""
    gen = torch.Generator().manual_seed(seed)

    def values(*size: int, std: float) -> Tensor:
        return (std * torch.randn(size, generator=gen)).to(dtype)

    def projection(inputs: int, outputs: int, quantised: bool, points: Static) -> Projection:
        weight = values(inputs, outputs, std=inputs**-0.5).double().numpy()
        if not quantised:
            return Projection(weight)
        codes, scale = formula.quantise(weight.T.astype(np.float32))
        return Projection(
            (codes * scale).T.astype(np.float64),
            codes.T,
            scale[:, 0].astype(np.float64),
            points if static else None,
        )

    wide = sizes.heads * (sizes.nope + sizes.rope)
    return Weights(
        projection(sizes.hidden, sizes.q_lora, int8[0], Static(2.0**-5, 5)),
        projection(sizes.hidden, sizes.latent + sizes.rope, int8[0], Static(2.0**-5, 5)),
        projection(sizes.q_lora, wide, int8[1], Static(2.0**-5, -3)),
        values(sizes.heads, sizes.nope, sizes.latent, std=sizes.nope**-0.5).double().numpy(),
        (1 + values(sizes.q_lora, std=0.2)).double().numpy(),
        (1 + values(sizes.latent, std=0.2)).double().numpy(),
    )


def fields(projection: Projection, dtype: torch.dtype) -> dict[str, Any]:
    """Tensors ``weight`` [K, N], and for int8 ``scale`` F32 [N] and, if static, ``bias`` [N]."""
    if projection.codes is None or projection.scale is None:
        return {"weight": torch.from_numpy(projection.weight.T).to(dtype).contiguous().T}
    out = {"weight": torch.from_numpy(np.ascontiguousarray(projection.codes.T)).to(torch.int8).T}
    scale = torch.from_numpy(projection.scale)
    if projection.static is not None:
        scale = scale * projection.static.scale
        out["bias"] = torch.from_numpy(-projection.static.offset * projection.codes.sum(0)).int()
    return out | {"scale": scale.float()}
