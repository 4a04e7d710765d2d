"""Faults planted in the sources of the Triton kernels are caught by the conformance suite."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from glm5_ascend.ops.lightning_indexer import triton_kernel as indexer_host
from glm5_ascend.ops.lightning_indexer import triton_source as indexer_source
from glm5_ascend.ops.sparse_flash_attention import triton_kernel as attention_host
from glm5_ascend.ops.sparse_flash_attention import triton_source as attention_source
from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.attention_data import AttentionShape
from glm5_ascend.ops.verify.case import Case
from glm5_ascend.ops.verify.indexer import IndexerCase
from glm5_ascend.ops.verify.requests import Requests
from glm5_ascend.ops.verify.runner import public, run_one

LONG = Requests("long", ((2, 300), (1, 261)), seed=3)
PACKED = AttentionShape(4, 512, 64)


class Fault(NamedTuple):
    """Text of a kernel's source, what takes its place, kernels to replace, a case to notice it."""

    source: ModuleType
    host: ModuleType
    kernels: tuple[str, ...]
    right: str
    wrong: str
    case: Case


def of_indexer(right: str, wrong: str, **case: object) -> Fault:
    kind = IndexerCase(requests=LONG, heads=16, **case)  # type: ignore[arg-type]
    return Fault(indexer_source, indexer_host, ("scores", "select"), right, wrong, kind)


def of_attention(right: str, wrong: str, **case: object) -> Fault:
    options: dict[str, object] = {"shape": AttentionShape(4, 64, 16), "count": 300, **case}
    kind = AttentionCase(requests=LONG, **options)  # type: ignore[arg-type]
    names = ("attend_rows", "combine", "unpack")
    return Fault(attention_source, attention_host, names, right, wrong, kind)


FAULTS = {
    "bf16 product": of_indexer("dot(key, query, INTERPRET)", "dot(key, query, False)"),
    "last keys dropped": of_indexer("position < end", "position < end - 1", kind="rising"),
    "causal bound off by one": of_indexer(
        "seen = tl.load(visible + row)\n", "seen = tl.load(visible + row) - 1\n", kind="rising"
    ),
    "no ReLU": of_indexer("tl.maximum(product, 0.0", "tl.maximum(product, -1e30"),
    "not the first of equals": of_indexer(
        "(rank <= wanted)", "(rank > 1) & (rank <= wanted + 1)", kind="equal"
    ),
    "first block of keys dropped": of_attention(
        "range(part * length, end, BN)", "range(part * length + BN, end, BN)"
    ),
    "future keys": of_attention("(position < seen)", "(position < seen + 1)", kind="future"),
    "no new maximum": of_attention("out * shrink[None, :]", "out", std=4.0),
    "parts unscaled": of_attention("values * factor[:, None]", "values", std=4.0),
    "rotated part forgotten": of_attention("score += dot(key_r", "score += 0 * dot(key_r"),
    "codes unscaled": of_attention(
        "tl.float32), (BN, L // TILE, TILE)) * scale[:, :, None]",
        "tl.float32), (BN, L // TILE, TILE))",
        packed=True, shape=PACKED, count=64,
    ),
    "scales of another tile": of_attention(
        "s_row + number[None, :]", "s_row + 3 - number[None, :]",
        packed=True, shape=PACKED, count=64,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_is_caught(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fault = FAULTS[name]
    text = Path(str(fault.source.__file__)).read_text(encoding="utf-8")
    assert fault.right in text
    (tmp_path / "planted.py").write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    spec = spec_from_file_location("planted", tmp_path / "planted.py")
    assert spec is not None
    assert spec.loader is not None
    planted = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "planted", planted)
    spec.loader.exec_module(planted)
    for kernel in fault.kernels:
        monkeypatch.setattr(fault.host, kernel, getattr(planted, kernel))
    result = run_one(fault.case, fault.case.problem(), "triton", public("triton"))
    assert not result.passed
    assert not result.declined


@pytest.mark.parametrize("name", FAULTS)
def test_right_source_passes(name: str) -> None:
    case = FAULTS[name].case
    run_one(case, case.problem(), "triton", public("triton")).require()
