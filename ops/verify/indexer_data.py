"""Hostile inputs of the lightning indexer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.ops.verify.requests import Requests

# Kinds whose equal scores are equal in every arithmetic, so that the tie rule decides.
EXACT = ("equal", "two_values", "all_zero", "mostly_nan")
KINDS = ("random", "rising", "falling", "not_a_number", "infinite", *EXACT)

_SPECIAL: dict[str, tuple[Callable[[int], Tensor], float]] = {
    "not_a_number": (lambda n: torch.arange(n) % 7 == 3, torch.nan),
    "mostly_nan": (lambda n: torch.arange(n) % 5 != 2, torch.nan),
    "infinite": (lambda n: torch.arange(n) % 7 == 3, torch.inf),
}


@dataclass(frozen=True)
class IndexerData:
    """query [tokens, H, D], keys of each request [k_len, D], weights [tokens, H].

    Quantised, query and keys are int8 or e4m3 codes with query_scale [tokens, H] and key_scale
    [k_len, 1].
    """

    query: Tensor
    keys: list[Tensor]
    weights: Tensor
    query_scale: Tensor | None = None
    key_scale: list[Tensor] | None = None

    def cast(self, dtype: torch.dtype, weights: torch.dtype) -> IndexerData:
        """With floats of ``dtype``, or codes (int8, e4m3); weights and scales of ``weights``."""
        wanted = self.weights.to(weights)
        if dtype not in CODES:
            return IndexerData(self.query.to(dtype), [k.to(dtype) for k in self.keys], wanted)
        codes = CODES[dtype]
        query, query_scale = codes(self.query)
        keys, key_scale = zip(*map(codes, self.keys), strict=True)
        each = [s.to(weights) for s in key_scale]
        return IndexerData(query, list(keys), wanted, query_scale[..., 0].to(weights), each)


def _codes(x: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 codes, scale [.., 1]); rows that are not finite have codes 0."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    codes = (x / scale.where(scale > 0, 1)).nan_to_num(0, 0, 0).round()
    return codes.where(scale.isfinite(), 0).to(torch.int8), scale


def _e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """(e4m3 codes, scale [.., 1]) likewise."""
    scale = x.abs().amax(-1, keepdim=True) / 448
    codes = (x / scale.where(scale > 0, 1)).nan_to_num(0, 0, 0)
    return codes.where(scale.isfinite(), 0).to(torch.float8_e4m3fn), scale


CODES: dict[torch.dtype, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    torch.int8: _codes,
    torch.float8_e4m3fn: _e4m3,
}


def draw(requests: Requests, heads: int, dim: int, kind: str, seed: int) -> IndexerData:
    """F32 values of one kind; a third of the head weights is negative, as in the model.

    random: normal. rising, falling: scores follow the position. equal, two_values: one or two
    different keys. all_zero: no dot product is positive. not_a_number, infinite: every seventh
    key holds a NaN or an infinity. mostly_nan: four of five do, so that some have to be chosen.
    """
    gen = torch.Generator().manual_seed(1000 * seed + requests.seed)
    query = torch.randn(requests.tokens, heads, dim, generator=gen)
    weights = torch.randn(requests.tokens, heads, generator=gen) + 0.4
    keys = [torch.randn(k, dim, generator=gen) for _, k in requests.lengths]
    if kind in ("rising", "falling"):
        base = torch.randn(dim, generator=gen)
        keys = [base * _slope(len(k), kind)[:, None] + 0.01 * k for k in keys]
    elif kind in ("equal", "two_values"):
        values = torch.randn(2, dim, generator=gen)
        keys = [values[_choice(len(k), kind, gen)] for k in keys]
    elif kind == "all_zero":
        query, keys = query.abs(), [-k.abs() for k in keys]
    elif kind in _SPECIAL:
        for k in keys:
            k[_SPECIAL[kind][0](len(k)), dim // 2] = _SPECIAL[kind][1]
    return IndexerData(query, keys, weights)


def _slope(count: int, kind: str) -> Tensor:
    slope = torch.linspace(0.5, 1.5, max(count, 1))[:count]
    return slope if kind == "rising" else slope.flip(0)


def _choice(count: int, kind: str, gen: torch.Generator) -> Tensor:
    if kind == "equal":
        return torch.zeros(count, dtype=torch.int64)
    return torch.randint(0, 2, (count,), generator=gen)
