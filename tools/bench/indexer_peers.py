"""How torch and vLLM compute the indexer: scores alone on dense keys, or everything, paged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tools.bench.indexer_data import BLOCK, CHOSEN, DIM, Data


def keys_first(query: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """mm [S, 32], ReLU, matvec, in one dtype."""
    return (keys @ query.mT).relu_() @ weights


def query_first(query: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """mm [32, S], ReLU, vector times matrix, in one dtype."""
    return weights @ (query @ keys.mT).relu_()


def int_keys_first(query: Tensor, keys: Tensor, weights: Tensor, key_scale: Tensor) -> Tensor:
    """_int_mm [S, 32], ReLU, matvec in F32; ``weights`` hold the query's scales."""
    return torch._int_mm(keys, query.mT).relu_().float() @ weights * key_scale


def int_query_first(query: Tensor, keys: Tensor, weights: Tensor, key_scale: Tensor) -> Tensor:
    """_int_mm [32, S], ReLU, vector times matrix in F32."""
    return weights @ torch._int_mm(query, keys.mT).relu_().float() * key_scale


def gather(cache: Tensor, blocks: Tensor) -> Tensor:
    """[S, width] of a paged cache [blocks, 128, 1, width]."""
    return cache.index_select(0, blocks).view(-1, cache.shape[-1])


def paged(query: Tensor, cache: Tensor, weights: Tensor, blocks: Tensor) -> Tensor:
    """The whole operator: gather, scores, unsorted top 2048."""
    scores = keys_first(query, gather(cache, blocks), weights)
    return scores.topk(CHOSEN, sorted=False).indices


def int_paged(
    query: Tensor, cache: Tensor, weights: Tensor, scales: Tensor, blocks: Tensor
) -> Tensor:
    """The whole operator on codes and paged scales [blocks, 128, 1, 1]."""
    keys, key_scale = gather(cache, blocks), gather(scales, blocks)[:, 0]
    scores = int_keys_first(query, keys, weights, key_scale)
    return scores.topk(CHOSEN, sorted=False).indices


class Fp8:
    """vLLM's FP8 form of the same data: pages of 128 rows, then their F32 scales."""

    def __init__(self, data: Data) -> None:
        scale = data.keys.float().abs().amax(1) / 448
        keys = (data.keys.float() / scale[:, None]).to(torch.float8_e4m3fn)
        self.query = data.query.to(torch.float8_e4m3fn)[None]
        self.weights = data.weights[None]
        self.length = torch.tensor([data.count], dtype=torch.int32)
        self.table = data.table
        pages = data.count // BLOCK
        self.cache = torch.empty(pages, BLOCK * (DIM + 4), dtype=torch.uint8)
        places = data.table[0].long()
        self.cache[places, : BLOCK * DIM] = keys.view(torch.uint8).view(pages, -1)
        self.cache[places, BLOCK * DIM :] = scale.view(pages, BLOCK).view(torch.uint8)
        wide = keys.double() * scale[:, None].double()
        dots = (wide @ self.query[0].double().T).relu_()
        self.oracle = dots @ data.weights.double()

    def scores(self, kernels: Any) -> Callable[[], Tensor]:
        """F32 [1, S]."""
        count = int(self.length)

        def run() -> Tensor:
            result: Tensor = kernels.fp8_paged_mqa_logits_cpu(
                self.query, self.cache, self.weights, self.length, self.table, BLOCK, count
            )
            return result

        return run

    def operator(self, kernels: Any) -> Callable[[], Tensor]:
        """int32 [512] positions: its top-k knows no other number."""
        scores = self.scores(kernels)
        out = torch.empty(1, 512, dtype=torch.int32)
        positions = torch.empty_like(out)

        def run() -> Tensor:
            kernels.topk_transform_512_cpu(scores(), self.length, self.table, out, BLOCK, positions)
            return positions[0]

        return run
