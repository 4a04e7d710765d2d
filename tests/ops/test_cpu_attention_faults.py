"""Mistakes planted into the C++ of attention are caught by the checks of its tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glm5_ascend.ops.sparse_flash_attention import cpu
from glm5_ascend.ops.verify.requests import Requests
from tests.ops.attention_calls import Call, Shape
from tests.ops.native.mutants import mutant

CALL = Call(Requests("faulty", ((5, 300), (1, 260)), seed=4), Shape(5, 40, 8, 230), torch.float32)
# With more keys than one part holds.
LONG = Call(Requests("long", ((2, 2500),), seed=5), Shape(5, 40, 8, 2400), torch.float32)
# File, right and wrong text.
FAULTS = {
    "sum not rescaled": (
        "softmax.h",
        "fma(load(running->total), keep, sum)",
        "load(running->total) + sum",
    ),
    "outputs not rescaled": (
        "kernel.h",
        "fma(load(to), splat(keep[h]), sum[h][n])",
        "load(to) + sum[h][n]",
    ),
    "last tile dropped": ("attend.h", "k < last; k += TILE", "k + TILE <= last; k += TILE"),
    "own key not seen": ("call.h", "keys - queries + i + 1", "keys - queries + i"),
    "future keys seen": ("call.h", "call.causal ? keys", "!call.causal ? keys"),
    "rope left out": (
        "attend.h",
        "p < call->parts; p++) {\n      const",
        "p < 1; p++) {\n      const",
    ),
    "scale squared": ("softmax.h", "* scale - base", "* scale * scale - base"),
    "first row of the block table": ("call.h", "sight.request * call.table_row", "0"),
    "-1 is position 0": ("call.h", "if (indices[i] < 0) continue;", ""),
    "no division by the sum": ("attend.h", "1 / total", "1"),
}
FAULTS_OF_PARTS = {
    "parts added as they are": (
        "attend.h",
        "fma(load(x + i), keep, load(y + i) * join)",
        "load(x + i) + load(y + i)",
    ),
    "sum of the last part alone": (
        "attend.h",
        "fma(load(a.total), load(a.keep), load(b.total) * load(b.keep))",
        "load(b.total)",
    ),
    "last part dropped": ("attend.h", "p < parts(); p++", "p + 1 < parts(); p++"),
    "parts overlap": ("attend.h", "(p + 1) * each : count", "(p + 1) * each + CUT : count"),
}


def test_the_checks_pass_without_a_mistake() -> None:
    CALL.check(CALL.run())
    LONG.check(LONG.run())


@pytest.mark.parametrize("fault", [*FAULTS, *FAULTS_OF_PARTS])
def test_planted_mistake_is_caught(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, right, wrong = (FAULTS | FAULTS_OF_PARTS)[fault]
    call = LONG if fault in FAULTS_OF_PARTS else CALL
    library = mutant("sparse_flash_attention", file, right, wrong, "portable", tmp_path)
    monkeypatch.setattr(cpu.KERNELS, "get", lambda name, work: getattr(library, name))
    results = call.run()
    with pytest.raises(AssertionError, match=r"limit|positions|NaN|inf"):
        call.check(results)
