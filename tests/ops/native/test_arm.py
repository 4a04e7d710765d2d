"""Every kernel of this package's own operators on ARM: NEON with dot products, and portable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.ops.native import hadamard_calls, indexer_calls
from tests.ops.native.calls import emulated
from tests.ops.native.cross import driver, emulator

# An emulated second is a small part of a real one.
_FEW = [p for p in indexer_calls.SCORED if p.label not in ("all-keys", "sixty-four-heads")]
_PROBLEMS = [*_FEW, *indexer_calls.EXACT, *indexer_calls.DISTRIBUTIONS]


@pytest.mark.parametrize("name", ["neon", "portable"])
def test_lightning_indexer(name: str, tmp_path: Path) -> None:
    command = [emulator(), str(driver("lightning_indexer", indexer_calls.ENTRIES, name, tmp_path))]
    built = [indexer_calls.build(problem) for problem in _PROBLEMS]
    calls = [b.call for b in built]
    results = emulated(command, indexer_calls.ENTRIES, calls, tmp_path, threads=2)
    for b, found in zip(built, results, strict=True):
        b.judge(found)


@pytest.mark.parametrize("name", ["neon", "portable"])
def test_hadamard_quant(name: str, tmp_path: Path) -> None:
    entries = (hadamard_calls.ENTRY,)
    command = [emulator(), str(driver("hadamard_quant", entries, name, tmp_path))]
    calls = [hadamard_calls.build(dtype) for dtype in hadamard_calls.DTYPES]
    results = emulated(command, entries, [call for call, _ in calls], tmp_path, threads=1)
    for (_, expected), found in zip(calls, results, strict=True):
        for ours, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, wanted)
