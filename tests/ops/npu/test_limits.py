"""Each limit of the vendor's operators is one row of a table, and one call that breaks only it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from glm5_ascend.ops.ascendc.limits import broken
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.lightning_indexer import torch_npu_op as indexer
from glm5_ascend.ops.sparse_flash_attention import torch_npu_op as attention
from tests.ops.npu.vendor import FakeVendor

BF16 = torch.bfloat16
CPU = torch.device("cpu")
REQUESTS = Queries([0, 1], [1, 2], 3)
PAGES = Keys([40, 20], [], CPU, torch.zeros(2, 3, dtype=torch.int32), 16)
APART = Keys([10, 20], [0, 40], CPU)
GAPS = torch.zeros(64, 1024, dtype=BF16)


def rows(*size: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype)


FLOAT = indexer.Call(rows(3, 8, 128), rows(64, 128), rows(3, 8), REQUESTS, PAGES, 2048, True)
INT8 = replace(
    FLOAT,
    query=rows(3, 8, 128, dtype=torch.int8),
    key=rows(64, 128, dtype=torch.int8),
    weights=rows(3, 8, dtype=torch.float16),
    scales=(rows(3, 8, dtype=torch.float16), rows(64, dtype=torch.float16)),
)
KEY = [rows(64, 512), rows(64, 64)]
LATENT = attention.Call(
    [rows(3, 8, 512), rows(3, 8, 64)], KEY, KEY[0], rows(3, 4), 1.0, 1, REQUESTS, PAGES, True
)
PACKED = replace(LATENT, query=[rows(3, 8, 576)], key=[rows(64, 656, dtype=torch.int8)])
Change = Callable[[Any], Any]


def change(**values: Any) -> Change:
    return lambda call: replace(call, **values)


HEADS = change(query=rows(3, 65, 128), weights=rows(3, 65))
INDEXER: dict[str, list[Change]] = {
    "float16 or bfloat16": [change(query=rows(3, 8, 128, dtype=torch.float32))],
    "heads of 128": [change(query=rows(3, 8, 64))],
    "64 heads": [HEADS],
    "gaps between": [change(key=GAPS[:, :128])],
    "one layout": [change(keys=APART)],
    "sparse_count": [change(count=2049), change(count=2560), change(count=9216)],
    "return_value": [change(return_value=True)],
}
QUANT: dict[str, list[Change]] = {
    "weights in float16": [change(weights=rows(3, 8))],
    "scales in float16": [change(scales=(rows(3, 8), INT8.scales[1])), change(scales=None)],
    "heads of 128": [change(query=rows(3, 8, 64, dtype=torch.int8))],
    "64 heads": [change(query=rows(3, 65, 128, dtype=torch.int8))],
    "gaps between": [change(key=GAPS.view(torch.int8)[:, :128])],
    "one layout": [change(keys=APART)],
    "scales without": [change(scales=(INT8.scales[0], GAPS.half()[:, 0]))],
    "sparse_count": [change(count=3072)],
}
SPARSE: dict[str, list[Change]] = {
    "float16 or bfloat16": [
        change(query=[rows(3, 8, d, dtype=torch.float32) for d in (512, 64)]),
    ],
    "latent of 512": [change(query=[rows(3, 8, 512)]), change(query=[rows(3, 8, 576)])],
    "as value": [change(value=rows(64, 512))],
    "or 128 heads": [change(query=[rows(3, 65, d) for d in (512, 64)])],
    "gaps between": [lambda c: replace(c, key=[c.key[0], GAPS[:, :64]])],
    "power of two": [change(block=3), change(block=256), change(block=32)],
    "one layout": [change(keys=APART)],
    "return_softmax_lse": [change(lse=True)],
}
KV_QUANT: dict[str, list[Change]] = {
    "query in bfloat16": [change(query=[rows(3, 8, 576, dtype=torch.float16)])],
    "or 128 heads": [change(query=[rows(3, 127, 576)])],
    "gaps between": [change(key=[GAPS.view(torch.int8)[:, :656]])],
    "power of two": [change(block=24)],
    "a paged key": [change(keys=Keys([10, 20], [0, 10], CPU))],
}
TABLES = [
    ("npu_lightning_indexer", indexer.LIMITS, FLOAT, INDEXER),
    ("npu_quant_lightning_indexer", indexer.QUANT_LIMITS, INT8, QUANT),
    ("npu_sparse_flash_attention", attention.LIMITS, LATENT, SPARSE),
    ("npu_kv_quant_sparse_flash_attention", attention.QUANT_LIMITS, PACKED, KV_QUANT),
]


@pytest.mark.parametrize(("operator", "limits", "call", "breaking"), TABLES)
def test_every_row_of_a_table_is_reached(
    operator: str, limits: Any, call: Any, breaking: dict[str, list[Change]], vendor: FakeVendor
) -> None:
    assert broken(operator, limits, call) is None
    reached = {
        word: [broken(operator, limits, each(call)) for each in changes]
        for word, changes in breaking.items()
    }
    for word, reasons in reached.items():
        for reason in reasons:
            assert reason is not None, word
            assert reason.startswith(f"{operator} takes "), reason
            assert word in reason
    named = {reason for reasons in reached.values() for reason in reasons}
    device = (
        {f"{operator} takes int8 on an Atlas A3 only"} if "quant_lightning" in operator else set()
    )
    assert named | device == {f"{operator} takes {limit.takes}" for limit in limits}


@pytest.mark.parametrize(
    ("name", "takes"),
    [("Ascend910_9392", True), ("Ascend910B3", False), ("Ascend950PR_957b", False)],
)
def test_int8_indexer_wants_an_a3(name: str, takes: bool, vendor: FakeVendor) -> None:
    vendor.device_name = name
    reason = broken("op", indexer.QUANT_LIMITS, INT8)
    assert reason is None if takes else reason == "op takes int8 on an Atlas A3 only"


def test_maxima_and_sums_are_declined(vendor: FakeVendor) -> None:
    call = LATENT
    with pytest.raises(Declined, match="return_softmax_lse=False") as caught:
        attention.forward(
            call.query, call.key, call.value, call.indices, 1.0, 1, REQUESTS, PAGES, causal=True
        )
    assert "'auto'" in caught.value.hint
    assert vendor.calls == []
