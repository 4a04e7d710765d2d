"""Calls of the attention operators on hostile requests, with their NumPy oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops import sparse_flash_attention
from glm5_ascend.ops.verify.formula import attention
from glm5_ascend.ops.verify.requests import Requests, page
from tests.support.compare import assert_close, error_limit


@dataclass(frozen=True)
class Shape:
    """Sizes of a call; ``count`` indices per token, each of ``block`` positions."""

    heads: int
    latent: int
    rope: int
    count: int
    block: int = 1
    block_size: int = 16

    def __str__(self) -> str:
        return "x".join(map(str, (self.heads, self.latent, self.rope, self.count, self.block)))


class Call:
    """Peaked attention over unsorted positions with -1 among them, pages in any order."""

    def __init__(self, requests: Requests, shape: Shape, dtype: torch.dtype) -> None:
        random = torch.Generator().manual_seed(requests.seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=random).to(dtype)

        self.requests, self.shape = requests, shape
        width = shape.latent + shape.rope
        self.query = normal(requests.tokens, shape.heads, width)
        self.rows = [normal(k, width) for _, k in requests.lengths]
        self.scale = 2.5 * width**-0.5
        self.indices = torch.full((requests.tokens, 1, shape.count), -1, dtype=torch.int32)
        for t, (b, visible) in enumerate(requests.rows()):
            # Positions that exist, but that the token does not see yet, are among them.
            most = -(-min(visible + 2, requests.lengths[b][1]) // shape.block)
            chosen = torch.randperm(max(most, 0), generator=random)[: shape.count].int()
            chosen[torch.rand(len(chosen), generator=random) < 0.1] = -1
            self.indices[t, 0, : len(chosen)] = chosen

    def arguments(self) -> dict[str, Any]:
        """Of ``sparse_flash_attention``; latent and rope are columns of one cache."""
        paged = page(self.requests, {"c": self.rows}, self.shape.block_size)
        latent = self.shape.latent
        given = {
            "query": self.query[..., :latent],
            "key": paged.caches["c"][..., :latent],
            "value": None,
            "sparse_indices": self.indices,
            "scale_value": self.scale,
            "sparse_block_size": self.shape.block,
            "actual_seq_lengths_kv": self.requests.key_lengths(),
            "layout_kv": "PA_BSND",
            "return_softmax_lse": True,
            **paged.layout(self.requests),
        }
        if self.shape.rope:
            given["query_rope"] = self.query[..., latent:]
            given["key_rope"] = paged.caches["c"][..., latent:]
        return given

    def run(self, **change: Any) -> tuple[Tensor, Tensor, Tensor]:
        """(out [T, H, L], max [T, H], sum [T, H]) of backend 'cpu'."""
        given = {**self.arguments(), "backend": "cpu", **change}
        out, peak, total = sparse_flash_attention(**given)
        return out, peak[0], total[0]

    def chosen(self, token: int) -> tuple[int, list[int]]:
        """(request, positions in the order of the indices) of a query token."""
        b, visible = self.requests.rows()[token]
        size = self.shape.block
        entries = [i for i in self.indices[token, 0].tolist() if i >= 0]
        spread = [p for i in entries for p in range(i * size, (i + 1) * size)]
        return b, [p for p in spread if p < visible]

    def oracle(self, dtype: Any = np.float64, seed: int | None = None) -> list[Tensor]:
        """[out, max, sum] by NumPy in ``dtype``, one token after the other.

        ``seed`` shuffles the columns that a score sums over.
        """
        order = np.arange(self.query.shape[-1])
        if seed is not None:
            np.random.default_rng(seed).shuffle(order)
        rows = []
        for t in range(self.requests.tokens):
            b, chosen = self.chosen(t)
            keys = self.rows[b][chosen].double().numpy()
            values = keys[:, : self.shape.latent]
            query = self.query[t].double().numpy()
            rows.append(attention(query[:, order], keys[:, order], values, self.scale, dtype))
        return [torch.from_numpy(np.stack(x)) for x in zip(*rows, strict=True)]

    def check(self, results: tuple[Tensor, ...]) -> None:
        """Fail unless all results keep to the tolerance policy.

        With few results one order of F32 additions may be lucky: the least exact of four counts.
        """
        wanted = self.oracle()
        lows = [self.oracle(np.float32, seed) for seed in range(4)]
        for i, (name, found) in enumerate(zip(("out", "max", "sum"), results, strict=False)):
            rounded = [low[i].to(found.dtype) for low in lows]
            worst = max(rounded, key=lambda low, exact=wanted[i]: error_limit(exact, low))
            assert_close(found, wanted[i], worst, name=name)
