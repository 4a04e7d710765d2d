"""The cases of the conformance suite.

Every operator is run at GLM-5's shape (32 x 128 index heads, 64 heads over 512 + 64), at
DeepSeek-V3.2's (64 x 128, 128 heads) and at the small model's (16 x 128, 4 heads over 256 + 64),
on requests longer than the number of positions that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from glm5_ascend.ops.verify import caches, hadamard, layers, linears, mlapo, moe, norms
from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.attention_data import DEEPSEEK, SMALL, AttentionShape
from glm5_ascend.ops.verify.attention_data import KINDS as INDEX_KINDS
from glm5_ascend.ops.verify.case import DTYPES, SIZES, Case
from glm5_ascend.ops.verify.indexer import IndexerCase
from glm5_ascend.ops.verify.indexer_data import KINDS as SCORE_KINDS
from glm5_ascend.ops.verify.requests import REQUESTS, Layout, Requests

LAYOUTS = (
    Layout("TND", "TND"),
    Layout("BSND", "BSND"),
    Layout("BSND", "PA_BSND", 128),
    Layout("TND", "PA_BSND", 1024),
)
BY_NAME = {requests.name: requests for requests in REQUESTS}
# One to four query tokens per request, as drafts of different lengths leave them.
DECODE = Requests("decode_1_to_4", ((1, 213), (2, 300), (3, 62), (4, 65)), seed=6)
EDGES = Requests("page_edges", ((1, 127), (1, 128), (1, 129), (2, 16), (2, 17), (1, 1024)), seed=7)
LONG = Requests("long", ((1, 2049), (1, 5000), (2, 4097), (4, 1521)), seed=8)
# A tile of a real run: decode with drafts at 16k keys, and a piece of a prompt.
TILE = Requests("tile", ((1, 16384), (4, 16321), (62, 4096)), seed=9)


def cases(size: str = "normal") -> Iterator[Case]:
    """All cases up to ``size``: "quick", "normal" or "full"."""
    wanted = SIZES[: SIZES.index(size) + 1]
    for source in (indexer, attention, caches.cases, hadamard.cases, norms.cases):
        yield from (case for case in source() if case.size in wanted)
    for source in (linears.cases, moe.cases, mlapo.cases, layers.cases):
        yield from (case for case in source() if case.size in wanted)


def indexer() -> Iterator[Case]:
    """Requests, kinds of scores, layouts, dtypes, shapes and options, each varied on its own."""
    for dtype, weights in ((torch.bfloat16, torch.float32), (torch.int8, torch.float16)):
        yield from _indexer_of(partial(IndexerCase, dtype=dtype, weights_dtype=weights))
    for dtype in (torch.float32, torch.float16):
        yield IndexerCase(requests=BY_NAME["mixed"], heads=16, dtype=dtype, weights_dtype=dtype)
        yield IndexerCase(requests=DECODE, dtype=dtype)
    for weights in (torch.bfloat16, torch.float32):
        yield IndexerCase(
            requests=DECODE, weights_dtype=weights, with_values=True, by_score=True, size="quick"
        )
    yield IndexerCase(requests=DECODE, dtype=torch.int8, size="quick")
    e4m3 = partial(IndexerCase, dtype=torch.float8_e4m3fn)
    for requests in (BY_NAME["mixed"], BY_NAME["drafts"], DECODE, EDGES):
        yield e4m3(requests=requests, size="quick")
    for kind in ("rising", "equal", "two_values", "all_zero", "mostly_nan"):
        yield e4m3(requests=DECODE, kind=kind, heads=16)
    yield e4m3(requests=LONG, heads=64, count=2048, by_score=True)


def _indexer_of(case: Callable[..., Case]) -> Iterator[Case]:
    for requests in (*REQUESTS, DECODE, EDGES):
        yield case(requests=requests, size="quick")
    for kind in SCORE_KINDS[1:]:
        yield case(requests=BY_NAME["decode"], kind=kind, size="quick")
        yield case(requests=BY_NAME["mixed"], kind=kind, heads=16)
    for layout in LAYOUTS:
        yield case(requests=BY_NAME["mixed"], layout=layout, heads=16)
        yield case(requests=DECODE, layout=layout, mode=0)
    yield case(requests=DECODE, heads=64)
    for count in (1, 2048):
        yield case(requests=BY_NAME["mixed"], count=count)
    yield case(requests=BY_NAME["drafts"], strided=True)
    for kind in ("random", "two_values", "mostly_nan"):
        yield case(requests=DECODE, kind=kind, by_score=True)
    yield case(requests=LONG, count=2048)
    for kind in ("rising", "falling", "equal", "two_values"):
        yield case(requests=LONG, count=2048, kind=kind, heads=8)
    yield case(requests=TILE, count=2048, size="full")
    yield case(requests=TILE, count=2048, heads=64, size="full")


def attention() -> Iterator[Case]:
    """Requests, kinds of indices, layouts, dtypes, shapes and options, each varied on its own."""
    yield from _attention_of(AttentionCase, SMALL)
    yield from _attention_of(partial(AttentionCase, packed=True), AttentionShape(8))
    e4m3 = partial(AttentionCase, packed=True, fp8=True)
    for requests in (BY_NAME["mixed"], BY_NAME["drafts"], DECODE):
        yield e4m3(requests=requests, shape=AttentionShape(8), size="quick")
    for kind in ("holes", "future", "empty"):
        yield e4m3(requests=DECODE, shape=AttentionShape(8), kind=kind)
    for dtype in DTYPES:
        yield e4m3(requests=DECODE, dtype=dtype, std=4)
    yield e4m3(requests=LONG, shape=AttentionShape(16), count=2048)
    for dtype in DTYPES:
        yield AttentionCase(
            requests=BY_NAME["mixed"], shape=SMALL, dtype=dtype, one_cache=True, with_sums=True
        )
    yield AttentionCase(
        requests=DECODE, layout=Layout("BSND", "BSND"), with_sums=True, kind="empty", size="quick"
    )
    yield AttentionCase(requests=DECODE, shape=SMALL, with_rope=False)
    yield AttentionCase(requests=TILE, shape=DEEPSEEK, count=2048, size="full")


def _attention_of(case: Callable[..., Case], shape: AttentionShape) -> Iterator[Case]:
    for requests in REQUESTS:
        yield case(requests=requests, shape=shape, size="quick")
    for kind in INDEX_KINDS[1:]:
        yield case(requests=BY_NAME["mixed"], shape=shape, kind=kind, size="quick")
    for layout in LAYOUTS:
        yield case(requests=DECODE, shape=shape, layout=layout, kind="holes", mode=0)
        yield case(requests=BY_NAME["chunk"], shape=shape, layout=layout, kind="future")
    for dtype in DTYPES:
        yield case(requests=DECODE, dtype=dtype, size="quick")
        yield case(requests=DECODE, shape=shape, dtype=dtype, std=4)
    yield case(requests=EDGES, shape=DEEPSEEK)
    yield case(requests=LONG, shape=AttentionShape(16), count=2048)
    yield case(requests=DECODE, shape=shape, block=8, count=16)
    yield case(requests=TILE, count=2048, size="full")
