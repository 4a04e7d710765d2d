"""The indexer on int8 queries and keys against exact integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import lightning_indexer_quant
from glm5_ascend.ops.verify.formula import best_positions
from glm5_ascend.ops.verify.requests import REQUESTS, Requests, page
from tests.support.compare import assert_identical, assert_same_selection

COUNT = 64


class Inputs:
    """int8 query [T, H, D], keys per request, weights with negative ones, scales."""

    def __init__(
        self,
        requests: Requests,
        heads: int = 16,
        dim: int = 128,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(requests.seed)
        self.requests = requests
        tokens = requests.tokens
        self.query = torch.randint(-127, 128, (tokens, heads, dim), dtype=torch.int8)
        self.keys = [
            torch.randint(-127, 128, (k, dim), dtype=torch.int8) for _, k in requests.lengths
        ]
        self.weights = torch.randn(tokens, heads).to(dtype)
        self.query_scale = torch.rand(tokens, heads).add(0.01).to(dtype)
        self.key_scales = [torch.rand(k, 1).add(0.01).to(dtype) for _, k in requests.lengths]

    def run(self, **change: Any) -> Tensor:
        paged = page(self.requests, {"s": self.key_scales})
        # Codes have no NaN to poison unused rows with; the scales have.
        codes = page(self.requests, {"k": [k.float() for k in self.keys]}).caches["k"]
        arguments = {
            "query": self.query,
            "key": codes.nan_to_num(77).to(torch.int8),
            "weights": self.weights,
            "query_dequant_scale": self.query_scale,
            "key_dequant_scale": paged.caches["s"].squeeze(-1),
            "actual_seq_lengths_key": self.requests.key_lengths(),
            "layout_key": "PA_BSND",
            "sparse_count": COUNT,
            **paged.layout(self.requests),
        }
        return lightning_indexer_quant(**{**arguments, "backend": "reference", **change})

    def scores(self, t: int, b: int, visible: int) -> np.ndarray:
        """F64 [visible]; the dots are int64."""
        keys = self.keys[b][:visible].numpy().astype(np.int64)
        dots = np.maximum(keys @ self.query[t].numpy().astype(np.int64).T, 0)
        factor = self.weights[t].double().numpy() * self.query_scale[t].double().numpy()
        return (dots @ factor) * self.key_scales[b][:visible, 0].double().numpy()


@pytest.mark.parametrize("heads", [16, 64])
@pytest.mark.parametrize("requests", REQUESTS, ids=str)
def test_double_precision_equals_sorting_every_score(requests: Requests, heads: int) -> None:
    inputs = Inputs(requests, heads, dtype=torch.float64)
    chosen = inputs.run()[:, 0].tolist()
    for t, (b, visible) in enumerate(requests.rows()):
        wanted = best_positions(inputs.scores(t, b, visible), COUNT)
        assert chosen[t] == wanted + [-1] * (COUNT - len(wanted)), (t, b, visible)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("heads", "dim"), [(32, 128), (64, 128), (16, 32)], ids=["GLM-5", "DeepSeek-V3.2", "small"]
)
def test_low_precision_scales_select_up_to_near_ties(
    heads: int, dim: int, dtype: torch.dtype
) -> None:
    requests = Requests("models", ((4, 900), (1, 700), (2, 10)))
    inputs = Inputs(requests, heads, dim, dtype)
    oracle = torch.full((requests.tokens, 900), -torch.inf, dtype=torch.float64)
    for t, (b, visible) in enumerate(requests.rows()):
        oracle[t, :visible] = torch.from_numpy(inputs.scores(t, b, visible))
    # Scores reach 1e7; F32 sums of their terms are right to some units.
    assert_same_selection(inputs.run(sparse_count=512)[:, 0], oracle, limit=16.0)


def test_dots_of_the_largest_codes_are_exact() -> None:
    """-128 * -128 * 128 with a last product one smaller: F16 or BF16 sums would call it a tie."""
    requests = Requests("largest", ((1, 80),))
    inputs = Inputs(requests, heads=1)
    inputs.query.fill_(-128)
    inputs.keys[0].fill_(-127)
    inputs.keys[0][:, 0] = (-torch.arange(80) - 48).to(torch.int8)
    inputs.weights.fill_(1)
    inputs.query_scale.fill_(1)
    inputs.key_scales[0].fill_(1)
    chosen = inputs.run(sparse_count=3, sorted=True)
    assert chosen.tolist() == [[[79, 78, 77]]]


def test_sorted_and_equal_scores() -> None:
    requests = Requests("equal", ((1, 200), (1, 20)))
    inputs = Inputs(requests, dtype=torch.float64)
    # Few bits: sums are exact, so that equal keys have equal scores in any order of adding.
    inputs.weights = inputs.weights.mul(8).round()
    inputs.query_scale = inputs.query_scale.mul(64).ceil()
    for b in range(2):
        repeated = torch.arange(len(inputs.keys[b])) % 7
        inputs.keys[b] = inputs.keys[b][repeated]
        inputs.key_scales[b] = inputs.key_scales[b][repeated]
    chosen = inputs.run(sorted=True)[:, 0]
    for t, (b, visible) in enumerate(requests.rows()):
        scores = inputs.scores(t, b, visible)
        order = sorted(range(visible), key=lambda s: (-scores[s], s))[:COUNT]
        assert chosen[t].tolist() == order + [-1] * (COUNT - len(order))


def test_contiguous_layouts_equal_pages() -> None:
    inputs = Inputs(REQUESTS[5])
    ends = inputs.requests.key_lengths().cumsum(0)
    flat = inputs.run(
        key=torch.cat(inputs.keys)[:, None],
        key_dequant_scale=torch.cat(inputs.key_scales),
        layout_key="TND",
        block_table=None,
        actual_seq_lengths_key=ends,
    )
    assert_identical(flat, inputs.run())


def test_rows_ignore_the_batch() -> None:
    inputs = Inputs(REQUESTS[3])
    whole, start = inputs.run(), 0
    for b, (q, k) in enumerate(inputs.requests.lengths):
        alone = Inputs(Requests("alone", ((q, k),)))
        part = slice(start, start + q)
        alone.query, alone.weights = inputs.query[part], inputs.weights[part]
        alone.query_scale = inputs.query_scale[part]
        alone.keys, alone.key_scales = [inputs.keys[b]], [inputs.key_scales[b]]
        assert_identical(alone.run(), whole[part].contiguous())
        start += q


def test_strided_keys_and_scales() -> None:
    """Codes and scale in one row of a wider byte cache, as an engine may keep them."""
    inputs = Inputs(Requests("strided", ((3, 100), (1, 90))))
    plain = inputs.run()
    keys = torch.cat(inputs.keys)
    cache = torch.zeros(len(keys), 1, 144, dtype=torch.int8)
    cache[:, 0, :128] = keys
    scales = cache[..., 128:132].view(torch.float32)
    scales.copy_(torch.cat(inputs.key_scales)[..., None])
    strided = inputs.run(
        key=cache[..., :128],
        key_dequant_scale=scales.squeeze(-1),
        layout_key="TND",
        block_table=None,
        actual_seq_lengths_key=inputs.requests.key_lengths().cumsum(0),
    )
    assert_identical(strided, plain)
