"""Exactly which arguments the vendor's operators get, and what becomes of their results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops.ascendc import layouts
from glm5_ascend.ops.checks import UNLIMITED
from glm5_ascend.ops.lightning_indexer import torch_npu_op as indexer
from glm5_ascend.ops.sparse_flash_attention import torch_npu_op as attention
from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.attention_data import AttentionShape
from glm5_ascend.ops.verify.indexer import IndexerCase
from glm5_ascend.ops.verify.requests import Layout
from glm5_ascend.ops.verify.runner import public, run_one
from glm5_ascend.ops.verify.suite import BY_NAME, DECODE
from tests.ops.npu.vendor import FakeVendor

LENGTHS_Q, LENGTHS_K = torch.tensor([1, 3]), torch.tensor([40, 20])
TABLE = torch.tensor([[2, 0, 1], [3, 1, 9]], dtype=torch.int32)
PAGED: dict[str, Any] = {"layout_query": "TND", "block_table": TABLE}


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Names, types and values, tensors with dtype."""
    assert list(found) == list(wanted) or set(found) == set(wanted)
    for name, value in wanted.items():
        if isinstance(value, Tensor):
            assert found[name].dtype == value.dtype, name
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name
            assert type(found[name]) is type(value), name


def test_indexer_over_pages(vendor: FakeVendor) -> None:
    q, k = torch.randn(3, 8, 128).bfloat16(), torch.randn(4, 16, 1, 128).bfloat16()
    w = torch.rand(3, 8)
    indices, values = ops.lightning_indexer(
        q, k, w, actual_seq_lengths_query=LENGTHS_Q, actual_seq_lengths_key=LENGTHS_K,
        layout_key="PA_BSND", sparse_count=24, backend="torch_npu", **PAGED,
    )  # fmt: skip
    wanted = {
        "query": q, "key": k, "weights": w, "actual_seq_lengths_query": int32(1, 3),
        "actual_seq_lengths_key": int32(40, 20), "block_table": TABLE, "layout_query": "TND",
        "layout_key": "PA_BSND", "sparse_count": 24, "sparse_mode": 3, "pre_tokens": UNLIMITED,
        "next_tokens": UNLIMITED, "return_value": False,
    }  # fmt: skip
    same(vendor.only, wanted)
    assert values.shape == (0,)
    assert indices.shape == (3, 1, 24)
    assert (indices[0].diff() > 0).all()
    assert indices[1].tolist() == [[*range(19), *[-1] * 5]]


def test_indexer_int8_with_batch_axes(vendor: FakeVendor) -> None:
    q, k = (torch.randint(-9, 9, s).to(torch.int8) for s in ((2, 3, 4, 128), (2, 50, 1, 128)))
    w, qs = torch.rand(2, 3, 4).half(), torch.rand(2, 3, 4).half()
    ks = torch.rand(2, 50, 1).half()
    found = ops.lightning_indexer_quant(
        q, k, w, qs, ks, actual_seq_lengths_query=torch.tensor([2, 3]), sparse_count=60,
        sparse_mode=0, backend="torch_npu",
    )  # fmt: skip
    wanted = {
        "query": q, "key": k, "weights": w, "query_dequant_scale": qs, "key_dequant_scale": ks,
        "query_quant_mode": 0, "key_quant_mode": 0, "actual_seq_lengths_query": int32(2, 3),
        "actual_seq_lengths_key": int32(50, 50), "block_table": None, "layout_query": "BSND",
        "layout_key": "BSND", "sparse_count": 60, "sparse_mode": 0, "pre_tokens": UNLIMITED,
        "next_tokens": UNLIMITED, "query_dtype": None, "key_dtype": None,
    }  # fmt: skip
    same(vendor.only, wanted)
    assert found[0, 2].unique().tolist() == [-1]
    assert found[0, 1, 0].tolist() == [*range(50), *[-1] * 10]


def test_attention_over_pages(vendor: FakeVendor) -> None:
    q, qr = torch.randn(3, 8, 512).bfloat16(), torch.randn(3, 8, 64).bfloat16()
    k, kr = torch.randn(4, 16, 1, 512).bfloat16(), torch.randn(4, 16, 1, 64).bfloat16()
    chosen = int32(3, -1, 5, 39, 19, -1, -1, 0, 7, 2, 1, 0).view(3, 1, 4)
    out, peak, total = ops.sparse_flash_attention(
        q, k, k, chosen, 0.25, query_rope=qr, key_rope=kr, actual_seq_lengths_query=LENGTHS_Q,
        actual_seq_lengths_kv=LENGTHS_K, layout_kv="PA_BSND", attention_mode=2,
        backend="torch_npu", **PAGED,
    )  # fmt: skip
    # The second row does not see position 19 yet: -1 and hidden positions go behind.
    moved = int32(3, 5, 39, -1, 0, -1, -1, -1, 7, 2, 1, 0).view(3, 1, 4)
    wanted = {
        "query": q, "key": k, "value": k, "sparse_indices": moved, "scale_value": 0.25,
        "block_table": TABLE, "actual_seq_lengths_query": int32(1, 3),
        "actual_seq_lengths_kv": int32(40, 20), "query_rope": qr, "key_rope": kr,
        "sparse_block_size": 1, "layout_query": "TND", "layout_kv": "PA_BSND", "sparse_mode": 3,
        "pre_tokens": UNLIMITED, "next_tokens": UNLIMITED, "attention_mode": 2,
        "return_softmax_lse": False, "sinks": None,
    }  # fmt: skip
    same(vendor.only, wanted)
    assert out.shape == (3, 8, 512)
    assert peak.shape == total.shape == (0,)


def test_attention_over_packed_rows(vendor: FakeVendor) -> None:
    q = torch.randn(3, 8, 576).bfloat16()
    rows = torch.zeros(4, 16, 656, dtype=torch.int8)
    ops.write_kv_rows(rows, torch.randn(64, 512), torch.randn(64, 64), torch.arange(64))
    rows = rows[:, :, None]
    chosen = int32(3, 5, -1, 19, 0, -1).view(3, 1, 2)
    out = ops.kv_quant_sparse_flash_attention(
        q, rows, rows, chosen, 0.5, 2, 2, actual_seq_lengths_query=LENGTHS_Q,
        actual_seq_lengths_kv=LENGTHS_K, layout_kv="PA_BSND", attention_mode=2,
        backend="torch_npu", **PAGED,
    )  # fmt: skip
    moved = int32(3, 5, -1, -1, 0, -1).view(3, 1, 2)
    wanted = {
        "query": q, "key": rows, "value": rows, "sparse_indices": moved, "scale_value": 0.5,
        "key_quant_mode": 2, "value_quant_mode": 2, "key_dequant_scale": None,
        "value_dequant_scale": None, "block_table": TABLE,
        "actual_seq_lengths_query": int32(1, 3), "actual_seq_lengths_kv": int32(40, 20),
        "sparse_block_size": 1, "layout_query": "TND", "layout_kv": "PA_BSND", "sparse_mode": 3,
        "pre_tokens": UNLIMITED, "next_tokens": UNLIMITED, "attention_mode": 2,
        "quant_scale_repo_mode": 1, "tile_size": 128, "rope_head_dim": 64, "key_dtype": None,
        "value_dtype": None,
    }  # fmt: skip
    same(vendor.only, wanted)
    assert not out[1].any()
    assert out[0].any()


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (indexer, "spread_rows", lambda rows, requests, fill: rows),
        (indexer, "_LAST", -5),
        (indexer, "_options", None),
        (attention, "_indices", lambda call, where: where.queries(call.indices[:, None])),
        (attention, "spread_rows", lambda rows, requests, fill: rows),
        (layouts, "_starts", lambda lengths: list(lengths)),
    ],
)
@pytest.mark.usefixtures("vendor")
def test_planted_faults_are_caught(
    module: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(module, name)
    if wrong is None:

        def wrong(call: Any, where: Any) -> dict[str, object]:
            return right(call, where) | {"sparse_mode": 0}

    batched = Layout("BSND", "PA_BSND", 128)
    packed = Layout("TND", "TND")
    shape = AttentionShape(8)
    cases = [
        IndexerCase(requests=DECODE, heads=16, layout=batched),
        IndexerCase(requests=DECODE, heads=16, layout=packed),
        AttentionCase(requests=DECODE, shape=shape, layout=batched, kind="holes"),
        AttentionCase(requests=BY_NAME["chunk"], shape=shape, layout=packed, kind="future"),
    ]
    monkeypatch.setattr(module, name, wrong)
    results = (run_one(case, case.problem(), "torch_npu", public("torch_npu")) for case in cases)
    assert any(result.declined or not result.passed for result in results)
