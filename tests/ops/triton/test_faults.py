"""Faults planted in the sources of the Triton kernels are caught by the conformance suite."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch

from glm5_ascend.ops.lightning_indexer import triton_fused
from glm5_ascend.ops.lightning_indexer import triton_source as indexer_source
from glm5_ascend.ops.sparse_flash_attention import triton_heads, triton_kernel, triton_parts
from glm5_ascend.ops.sparse_flash_attention import triton_source as attention_source
from glm5_ascend.ops.triton import tuning
from glm5_ascend.ops.triton.tuning import Attention, Indexer
from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.attention_data import AttentionShape
from glm5_ascend.ops.verify.case import Case
from glm5_ascend.ops.verify.compare import require
from glm5_ascend.ops.verify.indexer import IndexerCase
from glm5_ascend.ops.verify.requests import Requests
from glm5_ascend.ops.verify.runner import Result, public, run_one
from tests.ops.triton.planted import plant

LONG = Requests("long", ((2, 300), (1, 261)), seed=3)
DRAFTS = Requests("drafts", ((3, 200),), seed=4)
SHORT = Requests("short", ((4, 30),), seed=4)
PACKED = AttentionShape(4, 512, 64)
HOSTS = (triton_fused, triton_kernel, triton_heads, triton_parts)
# Ways to run that shapes of this size would not take.
FUSED = {"indexer": Indexer(32, 64, 4, 1, samples=64, room=128)}
TIGHT = {"indexer": Indexer(32, 64, 4, 1, samples=64, room=32)}
ALONE = {"attention": Attention("heads", 16, 4, 1, 1)}
UNITED = {"attention": Attention("heads", 16, 4, 1, 1, unite=4, share=256)}
Ways = dict[str, Indexer | Attention]


class Fault(NamedTuple):
    """Text of the kernels' source, what takes its place, a case to notice it, how it is run."""

    source: ModuleType
    right: str
    wrong: str
    case: Case
    ways: Ways


def of_indexer(right: str, wrong: str, ways: Ways | None = None, **case: object) -> Fault:
    kind = IndexerCase(**{"requests": LONG, "heads": 16, **case})  # type: ignore[arg-type]
    return Fault(indexer_source, right, wrong, kind, ways or {})


def of_attention(right: str, wrong: str, ways: Ways | None = None, **case: object) -> Fault:
    options: dict[str, object] = {"shape": AttentionShape(4, 64, 16), "count": 300, **case}
    kind = AttentionCase(**{"requests": LONG, **options})  # type: ignore[arg-type]
    return Fault(attention_source, right, wrong, kind, ways or {})


def of_fused(right: str, wrong: str, **case: object) -> Fault:
    return of_indexer(right, wrong, FUSED, **{"requests": DRAFTS, "count": 16, **case})


def of_heads(right: str, wrong: str, ways: Ways = UNITED, **case: object) -> Fault:
    return of_attention(right, wrong, ways, **{"requests": SHORT, "count": 20, **case})


FAULTS = {
    "bf16 product": of_indexer("dot(key, query, INTERPRET)", "dot(key, query, False)"),
    "last keys dropped": of_indexer("position < end", "position < end - 1", kind="rising"),
    "causal bound off by one": of_indexer(
        "tl.load(visible + row).to(tl.int32)", "tl.load(visible + row).to(tl.int32) - 1",
        kind="rising",
    ),
    "no ReLU": of_indexer("tl.maximum(product, 0.0", "tl.maximum(product, -1e30"),
    "not the first of equals": of_indexer(
        "(rank <= missing)", "(rank > 1) & (rank <= missing + 1)", kind="equal"
    ),
    "scale of another key": of_indexer(
        "ks + flat * ks_row", "ks + (flat ^ 1) * ks_row", dtype=torch.float8_e4m3fn
    ),
    "overflow of what is kept": of_indexer(
        "(every < count) | (every > ROOM)", "every < count", TIGHT, requests=DRAFTS, count=16,
        kind="rising",
    ),
    "overflow unheard": of_fused(
        "tl.store(wanted + row, 1)", "tl.store(wanted + row, 0)", kind="equal"
    ),
    "tiles of kept keys dropped": of_fused(
        "range(part * length, end, BN)", "range(part * length + BN, end, BN)", kind="falling"
    ),
    "kept future keys": of_fused(
        "(position[:, None] < seen[None, :]) & (number",
        "(position[:, None] <= seen[None, :]) & (number", kind="rising",
    ),
    "kept keys of another part": of_fused("whose * length + slot", "slot", kind="rising"),
    "kept ones: not the first of equals": of_fused(
        "(rank <= missing)", "(rank > 1) & (rank <= missing + 1)", kind="two_values", count=15,
        requests=Requests("one", ((1, 90),), seed=4),
    ),
    "first block of keys dropped": of_attention(
        "range(part * length, end, BN)", "range(part * length + BN, end, BN)"
    ),
    "future keys": of_attention("(position < seen)", "(position < seen + 1)", kind="future"),
    "no new maximum": of_attention("out * shrink[None, :]", "out", std=4.0),
    "parts unscaled": of_attention("values * factor[:, None]", "values", std=4.0),
    "rotated part forgotten": of_attention("score += dot(key_r", "score += 0 * dot(key_r"),
    "heads: bf16 product": of_heads("tl.trans(k2), INTERPRET", "tl.trans(k2), False", ALONE),
    "heads: first block of keys dropped": of_heads(
        "begin, end = 0, limit", "begin, end = BN, limit", ALONE
    ),
    "heads: future keys": of_heads("(position < seen)", "(position < seen + 1)", ALONE,
                                   kind="future"),
    "heads: no new maximum": of_heads("o1 * shrink[:, None]", "o1", ALONE, std=4.0),
    "heads: another tile": of_heads("dot(weight, k2, INTERPRET)", "dot(weight, k3, INTERPRET)"),
    "union: positions of a neighbour": of_heads(">> token[:, None]) & 1", ">> 0) & 1"),
    "union: future keys": of_heads(
        "(position < tl.load(visible + first + token))",
        "(position <= tl.load(visible + first + token))", kind="future",
    ),
    "union: whose it is forgotten": of_heads("bits | (1 << other)", "bits"),
    "union: last position lost": of_heads(
        "tl.where(fits, size, -1)", "tl.where(fits, size - 1, -1)"
    ),
    "codes unscaled": of_heads(
        "code.to(tl.float32) * scale[:, None]", "code.to(tl.float32)", ALONE,
        packed=True, shape=PACKED, fp8=True,
    ),
    "scales of another tile": of_heads(
        "flat * s_row + NUMBER", "flat * s_row + 3 - NUMBER", ALONE,
        packed=True, shape=PACKED, fp8=True,
    ),
    "unpacked: codes unscaled": of_attention(
        "tl.float32), (BN, L // TILE, TILE)) * scale[:, :, None]",
        "tl.float32), (BN, L // TILE, TILE))",
        packed=True, shape=PACKED, count=40, dtype=torch.float16,
    ),
    "unpacked: scales of another tile": of_attention(
        "s_row + number[None, :]", "s_row + 3 - number[None, :]",
        packed=True, shape=PACKED, count=40, dtype=torch.float16,
    ),
}  # fmt: skip


def run(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> Result:
    for name, how in fault.ways.items():
        monkeypatch.setattr(tuning, name, lambda *_, how=how: how)
    return run_one(fault.case, fault.case.problem(), "triton", public("triton"))


@pytest.mark.parametrize("name", FAULTS)
def test_is_caught(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fault = FAULTS[name]
    plant(fault.source, HOSTS, fault.right, fault.wrong, tmp_path, monkeypatch)
    result = run(fault, monkeypatch)
    assert not result.passed
    assert not result.declined
    assert "InterpreterError" not in result.figures.problem


RIGHT = {(fault.case, *fault.ways.values()): fault for fault in FAULTS.values()}


@pytest.mark.parametrize("fault", RIGHT.values(), ids=[f"{case}" for case, *_ in RIGHT])
def test_right_source_passes(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, how in fault.ways.items():
        monkeypatch.setattr(tuning, name, lambda *_, how=how: how)
    problem = fault.case.problem()
    require(problem.judge(problem.run(public("triton"))))
