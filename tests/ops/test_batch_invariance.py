"""A token's bits must not depend on what else is in the batch: continuous batching, chunked
prefill and one-by-one decoding then give the same tokens.

BLAS does not promise this; these tests measure it on the machine they run on.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops.verify.experts import Experts
from glm5_ascend.ops.verify.requests import Requests, page
from tests.support.compare import assert_identical

SIZES = (1, 2, 3, 4, 5, 8, 17, 31, 33, 62)
DTYPES = [torch.float32, torch.bfloat16]
BACKENDS = ["reference", "cpu"]


def assert_rows_ignore_each_other(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """``function`` maps rows to rows; any run of them alone must give the same bits."""
    whole = function(x)
    for size in SIZES:
        for start in (0, 1, len(x) - size):
            part = function(x[start : start + size].clone())
            assert_identical(part, whole[start : start + size].contiguous(), name=f"{size} rows")
    order = torch.randperm(len(x))
    assert_identical(function(x[order]), whole[order], name="permuted")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 48, 100, 192, 256, 6144])
def test_norms_and_activation_quantisation(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(70, width).to(dtype), torch.randn(width), torch.randn(width)
    assert_rows_ignore_each_other(lambda rows: ops.rms_norm(rows, weight, 1e-5), x)
    assert_rows_ignore_each_other(lambda rows: ops.layer_norm(rows, weight, bias), x)
    assert_rows_ignore_each_other(lambda rows: ops.dynamic_quant(rows)[0], x)
    assert_rows_ignore_each_other(lambda rows: ops.dynamic_quant(rows)[1], x)


@pytest.mark.parametrize("terms", [64, 96, 192, 256, 576, 2048])
@pytest.mark.parametrize("outputs", [1, 16, 100, 320])
def test_float_products(terms: int, outputs: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(70, terms), torch.randn(outputs, terms)
    assert_rows_ignore_each_other(lambda rows: ops.linear_rows(rows, weight), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_linear_layers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(70, 192).to(dtype)
    weight = torch.randint(-127, 128, (100, 192), dtype=torch.int8)
    scale, one = torch.rand(100) * 0.01, torch.tensor([0.03])
    bias = torch.randint(-9, 9, (100,), dtype=torch.int32)
    assert_rows_ignore_each_other(
        lambda rows: ops.linear_w8a8_dynamic(rows, weight, scale[:, None]), x
    )
    assert_rows_ignore_each_other(
        lambda rows: ops.linear_w8a8_static(rows, weight, one, -one * 100, bias, scale), x
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("experts", [8, 13, 16, 24, 100, 256])
def test_gating(experts: int, backend: str) -> None:
    torch.manual_seed(0)
    logits, bias = torch.randn(70, experts), torch.randn(experts) * 0.1

    def gating(rows: Tensor) -> tuple[Tensor, Tensor]:
        return ops.moe_gating(rows, bias, 4, 2.5, backend=backend)

    assert_rows_ignore_each_other(lambda rows: gating(rows)[0], logits)
    assert_rows_ignore_each_other(lambda rows: gating(rows)[1], logits)


def test_the_helper_sees_a_batch_dependent_sum() -> None:
    """Guards these tests: a product whose rows know their batch is caught."""
    x = torch.randn(70, 192)
    with pytest.raises(AssertionError, match="rows"):
        assert_rows_ignore_each_other(lambda rows: rows + rows.sum() * 1e-9, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", ["float", "w8a8", "w4a8"])
def test_experts(scheme: str, dtype: torch.dtype) -> None:
    case = Experts(70)
    case.x = case.x.to(dtype)
    arguments = case.quantised(scheme)
    if scheme == "float":
        arguments = {k: v for k, v in arguments.items() if "scale" not in k}
        arguments |= {"w13": case.w13.to(dtype), "w2": case.w2.to(dtype)}

    def run(rows: Tensor) -> Tensor:
        rows = rows[:, 0].long()
        picked = {k: arguments[k][rows] for k in ("x", "topk_weights", "topk_ids")}
        return ops.moe_experts(**{**arguments, **picked})

    assert_rows_ignore_each_other(run, torch.arange(70)[:, None])


class Sequence:
    """One request of 150 tokens with an indexer and an attention over 64 of them."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        torch.manual_seed(seed)
        self.length = 150
        self.index_query = torch.randn(self.length, 16, 128).to(dtype)
        self.index_key = torch.randn(self.length, 128).to(dtype)
        self.index_weights = torch.randn(self.length, 16).to(dtype)
        self.query = torch.randn(self.length, 4, 256).to(dtype)
        self.query_rope = torch.randn(self.length, 4, 64).to(dtype)
        self.latent = torch.randn(self.length, 256).to(dtype)
        self.key_rope = torch.randn(self.length, 64).to(dtype)


def step(work: list[tuple[Sequence, int, int]], backend: str, block_size: int = 16) -> list[Any]:
    """(indices, out) of every (sequence, first query, end of queries) in one batch."""
    requests = Requests("step", tuple((end - start, end) for _, start, end in work))
    paged = page(
        requests,
        {
            name: [getattr(s, name)[:end] for s, _, end in work]
            for name in ("index_key", "latent", "key_rope")
        },
        block_size,
    )

    def rows(name: str) -> Tensor:
        return torch.cat([getattr(s, name)[start:end] for s, start, end in work])

    common = {"block_table": paged.block_table, "layout_query": "TND", "backend": backend}
    common["actual_seq_lengths_query"] = requests.query_ends()
    indices, _ = ops.lightning_indexer(
        rows("index_query"),
        paged.caches["index_key"],
        rows("index_weights"),
        actual_seq_lengths_key=requests.key_lengths(),
        layout_key="PA_BSND",
        sparse_count=64,
        **common,
    )
    out = ops.sparse_flash_attention(
        rows("query"),
        paged.caches["latent"],
        paged.caches["latent"],
        indices,
        0.06,
        actual_seq_lengths_kv=requests.key_lengths(),
        query_rope=rows("query_rope"),
        key_rope=paged.caches["key_rope"],
        layout_kv="PA_BSND",
        **common,
    )[0]
    sizes = [end - start for _, start, end in work]
    return list(zip(indices.split(sizes), out.split(sizes), strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_does_not_depend_on_chunks_batch_or_pages(
    dtype: torch.dtype, backend: str
) -> None:
    sequences = [Sequence(dtype, seed) for seed in range(3)]
    whole = [step([(s, 0, s.length)], backend)[0] for s in sequences]
    together = step([(s, 0, s.length) for s in sequences], backend)
    for got, wanted in zip(together, whole, strict=True):
        for a, b in zip(got, wanted, strict=True):
            assert_identical(a.contiguous(), b, name="batched prefill")
    cuts = (0, 1, 62, 64, 65, 66, 73, 100, 149, 150)
    for start, end in pairwise(cuts):
        alone = step([(sequences[0], start, end)], backend)[0]
        # Company with other lengths, in pages of another size.
        batch = [(sequences[1], 3, 90), (sequences[0], start, end), (sequences[2], 149, 150)]
        for got, name in ((alone, "chunk"), (step(batch, backend, 32)[1], "chunk in a batch")):
            for a, b in zip(got, whole[0], strict=True):
                assert_identical(a.contiguous(), b[start:end].contiguous(), name=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_decoding_eight_requests_equals_decoding_each_alone(backend: str) -> None:
    sequences = [Sequence(torch.float32, seed) for seed in range(8)]
    work = [(s, s.length - 1 - 9 * i, s.length - 9 * i) for i, s in enumerate(sequences)]
    for got, one in zip(step(work, backend), work, strict=True):
        for a, b in zip(got, step([one], backend)[0], strict=True):
            assert_identical(a.contiguous(), b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, positions = torch.randn(70, 4, 64).to(dtype), torch.randint(0, 10000, (70,))

    def run(rows: Tensor) -> Tensor:
        rows = rows[:, 0].long()
        return ops.rotary_interleaved(x[rows], positions[rows], 8e6)

    assert_rows_ignore_each_other(run, torch.arange(70)[:, None])
