"""Inputs of the indexer's cases: one query token, 32 heads x 128, over a paged cache of keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

HEADS, DIM, CHOSEN, BLOCK = 32, 128, 2048, 128


@dataclass(frozen=True)
class Data:
    """Everything at once, so that all contestants see the same numbers.

    query bf16 [32, 128], keys bf16 [S, 128] in order of position, weights F32 [32], table int32
    [1, blocks]: block of the paged cache for every run of 128 positions.
    """

    query: Tensor
    keys: Tensor
    weights: Tensor
    table: Tensor

    @property
    def count(self) -> int:
        """Number of keys."""
        return len(self.keys)

    def paged(self, rows: Tensor) -> Tensor:
        """[blocks, 128, 1, width] of ``rows`` [S, width]: where the block table says."""
        cache = torch.empty_like(rows).view(-1, BLOCK, rows.shape[1])
        cache[self.table[0].long()] = rows.view(-1, BLOCK, rows.shape[1])
        return cache[:, :, None]

    @cached_property
    def query_codes(self) -> tuple[Tensor, Tensor]:
        """int8 [32, 128] and F32 scales [32]."""
        return _quantise(self.query)

    @cached_property
    def key_codes(self) -> tuple[Tensor, Tensor]:
        """int8 [S, 128] and F32 scales [S]."""
        return _quantise(self.keys)

    def scores(self, dtype: torch.dtype, *, quantised: bool) -> Tensor:
        """[S]: sum over heads of weight * max(0, query . key), with the codes' scales if so."""
        if not quantised:
            return _scores(self.query, self.keys, self.weights, dtype)
        (query, query_scale), (keys, key_scale) = self.query_codes, self.key_codes
        weights = self.weights.to(dtype) * query_scale.to(dtype)
        return key_scale.to(dtype) * _scores(query, keys, weights, dtype)


def _scores(query: Tensor, keys: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    return (keys.to(dtype) @ query.to(dtype).T).relu_() @ weights.to(dtype)


def _quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    scale = rows.float().abs().amax(-1) / 127
    return (rows.float() / scale[:, None]).round().to(torch.int8), scale


def draw(count: int) -> Data:
    """Normal queries, keys and weights."""
    generator = torch.Generator().manual_seed(count)
    query = torch.randn(HEADS, DIM, generator=generator).bfloat16()
    keys = torch.randn(count, DIM, generator=generator).bfloat16()
    weights = torch.randn(HEADS, generator=generator) + 0.4
    table = torch.randperm(count // BLOCK, generator=generator).int()[None]
    return Data(query, keys, weights, table)
