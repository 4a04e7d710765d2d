"""The Triton kernels, interpreted, pass the conformance suite at small sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.attention_data import AttentionShape
from glm5_ascend.ops.verify.case import Case
from glm5_ascend.ops.verify.indexer import IndexerCase
from glm5_ascend.ops.verify.requests import Layout, Requests
from glm5_ascend.ops.verify.runner import public, run_one

DECODE = Requests("decode", ((1, 213), (1, 62), (1, 1), (1, 300), (1, 65), (1, 64)))
DRAFTS = Requests("drafts", ((4, 130), (2, 64), (3, 66), (4, 4)), seed=3)
MIXED = Requests("mixed", ((0, 70), (1, 213), (12, 140), (0, 0), (1, 1), (9, 80)), seed=4)
REQUESTS = (DECODE, DRAFTS, MIXED)
SMALL = AttentionShape(4, 128, 64)
LAYOUTS = (Layout("TND", "TND"), Layout("BSND", "BSND"), Layout("BSND", "PA_BSND", 128))


E4M3 = torch.float8_e4m3fn
NUMBERS = ((torch.bfloat16, torch.float32), (torch.int8, torch.float16), (E4M3, torch.float32))


def indexer() -> Iterator[Case]:
    for dtype, weights in NUMBERS:
        for requests in REQUESTS:
            yield IndexerCase(requests=requests, heads=16, dtype=dtype, weights_dtype=weights)
        for kind in ("equal", "two_values", "rising", "mostly_nan"):
            yield IndexerCase(
                requests=DECODE, heads=16, dtype=dtype, weights_dtype=weights, kind=kind
            )
        yield IndexerCase(requests=DRAFTS, heads=32, dtype=dtype, weights_dtype=weights, mode=0)
    for layout in LAYOUTS:
        yield IndexerCase(requests=MIXED, heads=16, layout=layout)
    for dtype in (torch.float32, torch.float16):
        yield IndexerCase(requests=DRAFTS, heads=16, dtype=dtype, with_values=True, by_score=True)


def attention() -> Iterator[Case]:
    for requests in REQUESTS:
        yield AttentionCase(requests=requests, shape=SMALL, count=64)
    for heads in (8, 16, 64):
        yield AttentionCase(requests=DECODE, shape=AttentionShape(heads, 64, 16), count=64)
    for layout in LAYOUTS:
        yield AttentionCase(requests=MIXED, shape=SMALL, layout=layout)
    for dtype in (torch.float32, torch.float16):
        yield AttentionCase(requests=DRAFTS, shape=SMALL, dtype=dtype, with_sums=True)
    # More positions than one part holds, and peaked weights.
    yield AttentionCase(requests=DRAFTS, shape=SMALL, count=300, with_sums=True, std=4.0)
    for kind in ("holes", "future", "empty"):
        yield AttentionCase(requests=DRAFTS, shape=SMALL, kind=kind)
    yield AttentionCase(requests=DRAFTS, shape=SMALL, block=4, count=20)
    yield AttentionCase(requests=DECODE, shape=SMALL, with_rope=False, mode=0)
    for fp8 in (False, True):
        for dtype in (torch.bfloat16, torch.float16):
            shape = AttentionShape(4, 512, 64)
            yield AttentionCase(requests=DRAFTS, shape=shape, packed=True, dtype=dtype, fp8=fp8)


@pytest.mark.parametrize(
    "case", [*indexer(), *attention()], ids=lambda case: f"{case.operator}-{case}"
)
def test_conforms(case: Case) -> None:
    result = run_one(case, case.problem(), "triton", public("triton"))
    result.require()
    assert result.passed, result.declined
