"""What the backends of mlapo compute from: the arguments, checked, named and flattened."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of the shapes: tokens T, heads N, and the widths of the parts."""

    tokens: int
    hidden: int
    q_lora: int
    kv_lora: int
    heads: int
    nope: int
    rope: int


@dataclass(frozen=True, slots=True)
class Static:
    """One scale and one offset, one element each, for all activations of a point."""

    scale: Tensor
    offset: Tensor


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection: ``weight`` [N, K], float or int8.

    With int8: ``scale`` F32 [N] per channel; where the activations are quantised statically it
    includes their scale, and ``bias`` int32 [N] holds the correction for their offset.
    """

    weight: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None

    @property
    def is_int8(self) -> bool:
        return self.weight.dtype == torch.int8


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments of a backend's ``forward``; leading axes flattened to T tokens.

    Scales, biases and gammas have no gaps; x, weights and caches have the caller's strides.
    """

    sizes: Sizes
    dtype: torch.dtype  # of activations between the stages and of the results
    x: Tensor  # [T, hidden] in dtype, or int8 codes
    x_scale: Tensor | None  # F32 [T, 1] of int8 codes
    x_static: Static | None
    latent_static: Static | None
    down_q: Linear  # [q_lora, hidden]
    down_kv: Linear  # [kv_lora + rope, hidden]
    up_q: Linear  # [heads * (nope + rope), q_lora]
    absorb: Tensor  # [heads, nope, kv_lora]
    gamma_q: Tensor  # [q_lora]
    gamma_kv: Tensor  # [kv_lora]
    eps_q: float
    eps_kv: float
    cos: Tensor  # [T, rope / 2]
    sin: Tensor
    slots: Tensor  # int64 [T], -1 is skipped
    kv_cache: Tensor  # [blocks, block_size, kv_lora], or int8 [.., packed row]
    kr_cache: Tensor | None  # [blocks, block_size, rope]; None with packed rows
    quantise_query: bool
    latent: str  # what to return of the normalised q latent: "none", "float" or "int8"


@dataclass(frozen=True, slots=True)
class Outputs:
    """Results of a backend's ``forward``; None for what was not asked for."""

    query: Tensor  # [T, heads, kv_lora], dtype or int8
    query_rope: Tensor  # [T, heads, rope]
    query_scale: Tensor | None  # F32 [T, heads, 1]
    latent: Tensor | None  # [T, q_lora], dtype or int8
    latent_scale: Tensor | None  # F32 [T, 1]
