"""Backend torch_npu on stand-ins of the vendor's operators passes the conformance suite.

This proves how arguments and results are translated, for every layout, not what an NPU computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from glm5_ascend.ops.verify import device
from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.attention_data import KINDS, AttentionShape
from glm5_ascend.ops.verify.case import Case
from glm5_ascend.ops.verify.indexer import IndexerCase
from glm5_ascend.ops.verify.requests import Layout
from glm5_ascend.ops.verify.runner import public, run_one
from glm5_ascend.ops.verify.suite import BY_NAME, DECODE, EDGES, LAYOUTS
from tests.ops.npu.vendor import FakeVendor

OPERATORS = {
    "lightning_indexer": "npu_lightning_indexer",
    "lightning_indexer_quant": "npu_quant_lightning_indexer",
    "sparse_flash_attention": "npu_sparse_flash_attention",
    "kv_quant_sparse_flash_attention": "npu_kv_quant_sparse_flash_attention",
}


def cases() -> Iterator[Case]:
    """Layouts, lengths, holes in indices, order of results; within the operators' limits."""
    bf16 = partial(IndexerCase, heads=16)
    int8 = partial(bf16, dtype=torch.int8, weights_dtype=torch.float16)
    for indexer in (bf16, int8):
        for layout in LAYOUTS:
            yield indexer(requests=BY_NAME["mixed"], layout=layout)
            yield indexer(requests=DECODE, layout=layout, mode=0, by_score=True)
        yield indexer(requests=EDGES, count=2048)
        yield indexer(requests=BY_NAME["more_queries_than_keys"], kind="equal")
    yield bf16(requests=DECODE, dtype=torch.float16)
    eight = AttentionShape(8)
    for packed in (False, True):
        attention = partial(AttentionCase, shape=eight, packed=packed)
        for layout in LAYOUTS if not packed else LAYOUTS[2:]:
            yield attention(requests=DECODE, layout=layout, kind="holes", mode=0)
            yield attention(requests=BY_NAME["chunk"], layout=layout, kind="future", count=16)
        for kind in KINDS[1:]:
            yield attention(requests=EDGES, kind=kind)
        yield attention(requests=BY_NAME["more_queries_than_keys"], count=16)
        yield attention(requests=DECODE, block=8, count=16)
    yield AttentionCase(requests=DECODE, shape=eight, dtype=torch.float16)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{case.operator}-{case}")
def test_within_its_limits(case: Case, vendor: FakeVendor) -> None:
    result = run_one(case, case.problem(), "torch_npu", public("torch_npu"))
    assert not result.declined
    result.require()
    assert {name for name, _ in vendor.calls} == {OPERATORS[case.operator]}


def test_what_it_declines_is_no_failure(vendor: FakeVendor) -> None:
    wide = IndexerCase(requests=DECODE, dtype=torch.float32, layout=Layout("TND", "TND"))
    result = run_one(wide, wide.problem(), "torch_npu", public("torch_npu"))
    assert result.declined == "npu_lightning_indexer takes query and key in float16 or bfloat16"
    assert vendor.calls == []


def test_written_arguments_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device.HOMES, "elsewhere", "cpu")
    seen = []

    def call(function: str, /, **arguments: Any) -> tuple[torch.Tensor, list[int]]:
        seen.append(arguments)
        arguments["cache"].add_(1)
        return arguments["cache"][:1], [3]

    cache, key = torch.zeros(4), torch.ones(2, 3)
    arguments = {"cache": cache, "key": key, "value": key, "parts": [key], "count": 5}
    result, numbers = device.at_home(call, "elsewhere")("anything", **arguments)
    assert cache.tolist() == [1, 1, 1, 1]
    assert (result.tolist(), numbers) == ([1], [3])
    (given,) = seen
    assert given["key"] is given["value"] is given["parts"][0]
    assert given["key"] is not key
    assert given["count"] == 5
    assert device.at_home(call, "cpu") is call
