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
    "last tile dropped": ("attend.h", "k < count; k += TILE", "k + TILE <= count; k += TILE"),
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


def test_the_checks_pass_without_a_mistake() -> None:
    CALL.check(CALL.run())


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_mistake_is_caught(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, right, wrong = FAULTS[fault]
    library = mutant("sparse_flash_attention", file, right, wrong, "portable", tmp_path)
    monkeypatch.setattr(cpu.KERNELS, "get", lambda name, work: getattr(library, name))
    results = CALL.run()
    with pytest.raises(AssertionError, match=r"limit|positions|NaN|inf"):
        CALL.check(results)
