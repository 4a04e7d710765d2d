"""Mistakes planted in the indexer's sources are caught by the calls that the other tests make."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from glm5_ascend.ops.native import library
from tests.ops.native.calls import here
from tests.ops.native.indexer_calls import DISTRIBUTIONS, EXACT, SCORED, Problem, build
from tests.ops.native.mutants import mutant

FAULTS = {
    "no-relu": ("tile.h", "return x < F{} ? F{} : x;", "return x;"),
    "nan-becomes-zero": ("tile.h", "return x < F{} ? F{} : x;", "return x > F{} ? x : F{};"),
    "no-ties-taken": (
        "select.h",
        "return emit(x, nullptr, n, limit, k - found, k, s.chosen);",
        "return emit(x, nullptr, n, limit, 0, k, s.chosen);",
    ),
    "last-scores-unseen": (
        "select.h",
        "for (; i < n; i++) {\n    where[found]",
        "for (; i < 0; i++) {\n    where[found]",
    ),
    "one-token-too-many": (
        "lightning_indexer.cpp",
        "r.keys - r.rows + i + 1)",
        "r.keys - r.rows + i + 2)",
    ),
    "blocks-in-order": (
        "keys.h",
        "rows_.table[block] * rows_.block_size",
        "block * rows_.block_size",
    ),
    "key-scale-forgotten": ("score.h", "if (scales_ != nullptr) total *=", "if (false) total *="),
}
PROBLEMS = (*SCORED, *EXACT, *DISTRIBUTIONS)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(fault: str, tmp_path: Path) -> None:
    kernels = mutant("lightning_indexer", *FAULTS[fault], "portable", tmp_path)
    assert any(_refused(problem, kernels) for problem in PROBLEMS), f"{fault} went unnoticed"


def _refused(problem: Problem, kernels: ctypes.CDLL) -> bool:
    built = build(problem)
    try:
        built.judge(here(kernels, built.call))
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("problem", [SCORED[1], SCORED[-1], EXACT[0]], ids=str)
def test_the_judge_notices(problem: Problem) -> None:
    built = build(problem)
    found = here(library("lightning_indexer"), built.call)
    built.judge(found)
    row = int(built.visible.argmax())
    for index, change in (
        (0, found[0][row][::-1]),
        (0, found[0][row] + 1),
        (1, found[1][row] * 1.01 + 0.01),
    ):
        wrong = [x.copy() for x in found]
        wrong[index][row] = change
        with pytest.raises(AssertionError):
            built.judge(wrong)
