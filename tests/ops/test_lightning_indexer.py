"""Lightning indexer: selection, order, ties, layouts and bounded memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops.lightning_indexer import reference
from glm5_ascend.ops.verify.formula import best_positions, index_scores
from glm5_ascend.ops.verify.requests import REQUESTS, Requests, page
from tests.support.compare import assert_identical, assert_same_selection

COUNT = 64
lightning_indexer = partial(ops.lightning_indexer, backend="reference")


def make(requests: Requests, heads: int = 16, dim: int = 128, dtype: torch.dtype = torch.float32):
    """query [T, H, D], keys per request, weights [T, H] with negative ones among them."""
    torch.manual_seed(requests.seed)
    query = torch.randn(requests.tokens, heads, dim).to(dtype)
    keys = [torch.randn(k, dim).to(dtype) for _, k in requests.lengths]
    return query, keys, torch.randn(requests.tokens, heads).to(dtype)


def run_paged(
    requests: Requests, query: Tensor, keys: list[Tensor], weights: Tensor, **options: Any
) -> Tensor:
    paged = page(requests, {"k": keys})
    options.setdefault("sparse_count", COUNT)
    return lightning_indexer(
        query,
        paged.caches["k"],
        weights,
        actual_seq_lengths_key=requests.key_lengths(),
        layout_key="PA_BSND",
        **paged.layout(requests),
        **options,
    )[0][:, 0]


def oracle_scores(requests: Requests, query: Tensor, keys: list[Tensor], weights: Tensor) -> Tensor:
    """F64 [T, longest]; -inf where a query must not look."""
    width = max([k for _, k in requests.lengths] + [COUNT])
    out = torch.full((requests.tokens, width), -torch.inf, dtype=torch.float64)
    for t, (b, visible) in enumerate(requests.rows()):
        q, w = query[t].double().numpy(), weights[t].double().numpy()
        out[t, :visible] = torch.from_numpy(index_scores(q, keys[b][:visible].double().numpy(), w))
    return out


@pytest.mark.parametrize("heads", [16, 32])
@pytest.mark.parametrize("requests", REQUESTS, ids=str)
def test_double_precision_equals_sorting_every_score(requests: Requests, heads: int) -> None:
    query, keys, weights = make(requests, heads, dtype=torch.float64)
    chosen = run_paged(requests, query, keys, weights).tolist()
    for t, (b, visible) in enumerate(requests.rows()):
        scores = index_scores(query[t].numpy(), keys[b][:visible].numpy(), weights[t].numpy())
        wanted = best_positions(scores, COUNT)
        assert chosen[t] == wanted + [-1] * (COUNT - len(wanted)), (t, b, visible)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("requests", REQUESTS, ids=str)
def test_low_precision_inputs_select_up_to_near_ties(
    requests: Requests, dtype: torch.dtype
) -> None:
    query, keys, weights = make(requests, dtype=dtype)
    oracle = oracle_scores(requests, query, keys, weights)
    chosen = run_paged(requests, query, keys, weights)
    # 16 heads of products near 11: F32 rounding stays far below 1e-3.
    assert_same_selection(chosen, oracle, limit=1e-3)


@pytest.mark.parametrize("requests", REQUESTS, ids=str)
def test_contiguous_layouts_equal_pages(requests: Requests) -> None:
    query, keys, weights = make(requests)
    paged = run_paged(requests, query, keys, weights)
    flat = lightning_indexer(
        query,
        torch.cat(keys)[:, None],
        weights,
        actual_seq_lengths_query=requests.query_ends(),
        actual_seq_lengths_key=requests.key_lengths().cumsum(0),
        layout_query="TND",
        layout_key="TND",
        sparse_count=COUNT,
    )[0][:, 0]
    assert_identical(flat, paged)
    most_q, most_k = (max([*sizes, 1]) for sizes in zip(*requests.lengths, strict=True))
    batch = len(requests.lengths)
    wide_q = torch.full((batch, most_q, *query.shape[1:]), torch.nan)
    wide_w = torch.full((batch, most_q, query.shape[1]), torch.nan)
    wide_k = torch.full((batch, most_k, 1, query.shape[2]), torch.nan)
    for b, q in enumerate(query.split([q for q, _ in requests.lengths])):
        wide_q[b, : len(q)] = q
        wide_k[b, : len(keys[b]), 0] = keys[b]
    for b, w in enumerate(weights.split([q for q, _ in requests.lengths])):
        wide_w[b, : len(w)] = w
    padded = lightning_indexer(
        wide_q,
        wide_k,
        wide_w,
        actual_seq_lengths_query=torch.tensor([q for q, _ in requests.lengths]),
        actual_seq_lengths_key=requests.key_lengths(),
        sparse_count=COUNT,
    )[0][:, :, 0]
    for b, (q, _) in enumerate(requests.lengths):
        start = sum(n for n, _ in requests.lengths[:b])
        assert_identical(padded[b, :q].contiguous(), paged[start : start + q].contiguous())
        assert (padded[b, q:] == -1).all()


@pytest.mark.parametrize("requests", REQUESTS, ids=str)
def test_sorted_positions_and_their_values(requests: Requests) -> None:
    """By descending score, equal scores by position; rows with few keys are ordered too."""
    query, keys, weights = make(requests, dtype=torch.float64)
    # Whole numbers: sums are exact, so that equal keys have equal scores in any order of adding.
    query, keys, weights = query.round(), [k.round() for k in keys], weights.round()
    for k in keys:
        k[1::5] = k[: len(k[1::5])].clone()
    paged = page(requests, {"k": keys})
    chosen, values = lightning_indexer(
        query,
        paged.caches["k"],
        weights,
        actual_seq_lengths_key=requests.key_lengths(),
        layout_key="PA_BSND",
        sparse_count=COUNT,
        sorted=True,
        return_value=True,
        **paged.layout(requests),
    )
    for t, (b, visible) in enumerate(requests.rows()):
        scores = index_scores(query[t].numpy(), keys[b][:visible].numpy(), weights[t].numpy())
        best = best_positions(scores, COUNT)
        padding = COUNT - len(best)
        row = chosen[t, 0, : len(best)].tolist()
        assert sorted(row) == best
        assert chosen[t, 0].tolist() == row + [-1] * padding
        torch.testing.assert_close(values[t, 0, : len(best)], torch.from_numpy(scores[row]))
        assert (values[t, 0, len(best) :] == -torch.inf).all()
        pairs = list(zip((-values[t, 0]).tolist(), row, strict=False))
        assert pairs == sorted(pairs)


def test_values_belong_to_ascending_positions_and_nan_counts_as_minus_infinity() -> None:
    requests = Requests("values", ((1, 200), (1, 30)))
    query, keys, weights = make(requests)
    keys[1][4:8] = torch.nan
    paged = page(requests, {"k": keys})
    chosen, values = lightning_indexer(
        query,
        paged.caches["k"],
        weights,
        actual_seq_lengths_key=requests.key_lengths(),
        layout_key="PA_BSND",
        sparse_count=COUNT,
        return_value=True,
        **paged.layout(requests),
    )
    assert_identical(chosen[:, 0], run_paged(requests, query, keys, weights))
    for t, (b, _) in enumerate(requests.rows()):
        row = [s for s in chosen[t, 0].tolist() if s >= 0]
        scores = index_scores(query[t].numpy(), keys[b].numpy(), weights[t].numpy())
        wanted = torch.from_numpy(np.where(np.isnan(scores), -np.inf, scores)[row]).float()
        torch.testing.assert_close(values[t, 0, : len(row)], wanted, rtol=1e-5, atol=1e-4)
    assert (values[1, 0, 4:8] == -torch.inf).all()


@pytest.mark.parametrize(
    ("name", "heads", "dim"), [("GLM-5", 32, 128), ("DeepSeek-V3.2", 64, 128), ("small", 16, 32)]
)
def test_shapes_of_the_models(name: str, heads: int, dim: int) -> None:
    requests = Requests(name, ((4, 2300), (1, 2049), (1, 40)))
    query, keys, weights = make(requests, heads, dim, torch.bfloat16)
    oracle = oracle_scores(requests, query, keys, weights)
    chosen = run_paged(requests, query, keys, weights, sparse_count=2048)
    assert chosen.shape == (6, 2048)
    assert_same_selection(chosen, oracle, limit=1e-3)


def test_without_a_mask_every_key_is_visible() -> None:
    requests = Requests("no_mask", ((5, 100),))
    query, keys, weights = make(requests, dtype=torch.float64)
    chosen = run_paged(requests, query, keys, weights, sparse_mode=0)
    for t in range(5):
        scores = index_scores(query[t].numpy(), keys[0].numpy(), weights[t].numpy())
        assert chosen[t].tolist() == best_positions(scores, COUNT)


def test_ties_take_the_lowest_positions() -> None:
    requests = Requests("ties", ((1, 200), (200, 200)))
    query, keys, weights = make(requests)
    for k in keys:
        k.copy_(k[torch.arange(len(k)) % 7])  # seven distinct scores
    chosen = run_paged(requests, query, keys, weights)
    for t, (b, visible) in enumerate(requests.rows()):
        distinct = index_scores(query[t].numpy(), keys[b][:7].numpy(), weights[t].numpy())
        wanted = best_positions(distinct[np.arange(visible) % 7], COUNT)
        assert chosen[t].tolist() == wanted + [-1] * (COUNT - len(wanted))


@pytest.mark.parametrize("value", [0.0, torch.nan, -torch.inf])
def test_equal_hopeless_scores_take_the_lowest_visible_positions(value: float) -> None:
    requests = Requests("hopeless", ((1, 200), (150, 200)))
    query, keys, weights = make(requests)
    weights.fill_(value)  # 0 * x, NaN, or -inf * max(0, x) = -inf or NaN
    chosen = run_paged(requests, query, keys, weights)
    for t, (_, visible) in enumerate(requests.rows()):
        count = min(visible, COUNT)
        assert chosen[t].tolist() == [*range(count)] + [-1] * (COUNT - count)


def test_a_nan_key_loses_against_every_number() -> None:
    requests = Requests("nan_key", ((1, 200),))
    query, keys, weights = make(requests)
    keys[0][10:40] = torch.nan
    chosen = run_paged(requests, query, keys, weights)[0].tolist()
    scores = index_scores(query[0].numpy(), keys[0].numpy(), weights[0].numpy())
    assert chosen == best_positions(scores, COUNT)
    assert not set(chosen) & set(range(10, 40))


def test_infinite_scores_come_first() -> None:
    requests = Requests("infinite", ((1, 200),))
    query, keys, weights = make(requests)
    query.abs_()
    weights.abs_()
    keys[0][150:] = torch.inf
    assert run_paged(requests, query, keys, weights)[0].tolist()[-50:] == [*range(150, 200)]


def test_strided_inputs() -> None:
    requests = Requests("strided", ((30, 100), (1, 90)))
    query, keys, weights = make(requests)
    plain = run_paged(requests, query, keys, weights)
    query = torch.stack((query, query), 1)[:, 0]
    weights = torch.cat((weights, weights), -1)[:, :16]
    paged = page(requests, {"k": keys})
    cache = torch.cat((paged.caches["k"], paged.caches["k"]), -1)[..., 128:]
    assert not any(t.is_contiguous() for t in (query, weights, cache))
    strided = lightning_indexer(
        query,
        cache,
        weights,
        actual_seq_lengths_key=requests.key_lengths(),
        layout_key="PA_BSND",
        sparse_count=COUNT,
        **paged.layout(requests),
    )[0][:, 0]
    assert_identical(strided, plain)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests("chunks", ((90, 200), *[(2, 150)] * 5))
    query, keys, weights = make(requests)
    whole = run_paged(requests, query, keys, weights)
    monkeypatch.setattr(reference, "_CHUNK_BYTES", 4 * 16 * 200 * 7)
    largest = []
    scores = reference.scores

    def spy(query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
        largest.append(query.shape[0] * query.shape[1] * key.shape[1] * 4)
        return scores(query, key, weights)

    monkeypatch.setattr(reference, "scores", spy)
    assert_identical(run_paged(requests, query, keys, weights), whole)
    assert len(largest) > 12
    assert max(largest) <= 4 * 16 * 200 * 7


def test_long_prefill_stays_below_64_mib_of_head_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests("long", ((300, 5000),))
    query, keys, weights = make(requests, heads=32, dim=8)
    sizes = []
    best = reference.best

    def spy(score: Tensor, visible: Tensor, count: int) -> Tensor:
        sizes.append(score.numel() * 32 * 4)
        return best(score, visible, count)

    monkeypatch.setattr(reference, "best", spy)
    run_paged(requests, query, keys, weights)
    assert sum(sizes) > 64 << 20
    assert max(sizes) <= 64 << 20
