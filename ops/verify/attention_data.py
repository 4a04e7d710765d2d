"""Hostile inputs of sparse flash attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.ops.verify.requests import Requests

# What the rows of indices look like; all of them but "selected" are legal and unusual.
KINDS = ("selected", "holes", "future", "sparse", "empty", "descending")


@dataclass(frozen=True)
class AttentionData:
    """query [tokens, H, L], query_rope [tokens, H, R], latent and key_rope of each request
    [k_len, L] and [k_len, R], indices int32 [tokens, K]."""

    query: Tensor
    query_rope: Tensor
    latent: Sequence[Tensor]
    key_rope: Sequence[Tensor]
    indices: Tensor


@dataclass(frozen=True)
class AttentionShape:
    """Heads, latent width and rotated width."""

    heads: int = 64
    latent: int = 512
    rope: int = 64

    def __str__(self) -> str:
        return f"{self.heads}x{self.latent}+{self.rope}"


GLM5, DEEPSEEK, SMALL = AttentionShape(), AttentionShape(128), AttentionShape(4, 256, 64)


def draw(
    requests: Requests, shape: AttentionShape, dtype: torch.dtype, std: float, seed: int
) -> AttentionData:
    """Normal values, queries of deviation ``std``; no indices yet (width 0)."""
    gen = torch.Generator().manual_seed(1000 * seed + requests.seed)
    tokens = requests.tokens

    def normal(*size: int, by: float = 1.0) -> Tensor:
        return (by * torch.randn(size, generator=gen)).to(dtype)

    return AttentionData(
        normal(tokens, shape.heads, shape.latent, by=std),
        normal(tokens, shape.heads, shape.rope, by=std),
        [normal(k, shape.latent) for _, k in requests.lengths],
        [normal(k, shape.rope) for _, k in requests.lengths],
        torch.zeros(tokens, 0, dtype=torch.int32),
    )


def draw_indices(
    requests: Requests, count: int, block: int, kind: str, seed: int, *, causal: bool
) -> Tensor:
    """int32 [tokens, count] of one kind, units of ``block`` positions.

    selected: visible, ascending, padded with -1. holes: every fourth entry is -1. future: taken
    from all keys of the request, visible or not. sparse: three entries at most. empty: every
    second row holds -1 only. descending: from the last to the first.
    """
    gen = torch.Generator().manual_seed(1000 * seed + requests.seed + 1)
    out = torch.full((requests.tokens, count), -1, dtype=torch.int32)
    for row, (b, visible) in enumerate(requests.rows(causal=causal)):
        reach = requests.lengths[b][1] if kind == "future" else visible
        blocks = -(-reach // block)
        chosen = torch.randperm(blocks, generator=gen)[: 3 if kind == "sparse" else count]
        chosen = chosen.sort(descending=kind == "descending").values.int()
        if kind == "holes":
            chosen[1::4] = -1
        if kind == "empty" and row % 2:
            chosen.fill_(-1)
        out[row, : len(chosen)] = chosen
    return out
