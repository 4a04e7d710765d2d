"""The indexer's kernels on every instruction set of this machine, against the formula in F64."""

from __future__ import annotations

import numpy as np
import pytest

from glm5_ascend.ops.native import isa, library
from tests.ops.native.calls import here
from tests.ops.native.indexer_calls import DISTRIBUTIONS, EXACT, SCORED, Problem, build

AVAILABLE = [chosen.name for chosen in isa.INSTRUCTION_SETS if not isa.missing(chosen)]
pytestmark = pytest.mark.parametrize("name", AVAILABLE)


@pytest.mark.parametrize("problem", [*SCORED, *EXACT, *DISTRIBUTIONS], ids=str)
def test_positions_and_values(problem: Problem, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", name)
    built = build(problem)
    built.judge(here(library("lightning_indexer"), built.call))


@pytest.mark.parametrize("problem", SCORED[:8], ids=str)
def test_same_bits_on_two_threads_and_twice(
    problem: Problem, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", name)
    call = build(problem).call
    once = here(library("lightning_indexer"), call)
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("GLM5_ASCEND_THREADS", threads)
        for first, second in zip(once, here(library("lightning_indexer"), call), strict=True):
            np.testing.assert_array_equal(first.view(np.uint8), second.view(np.uint8))


@pytest.mark.parametrize("problem", SCORED[:8], ids=str)
def test_a_row_depends_on_its_own_request_only(
    problem: Problem, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request alone, and without a block table, has the bits that it has in the batch."""
    monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", name)
    built = build(problem)
    kernels = library("lightning_indexer")
    whole = here(kernels, built.call)
    for number in range(len(problem.lengths)):
        alone = here(kernels, built.alone(number))
        rows = built.rows(number)
        for first, second in zip(whole, alone, strict=True):
            np.testing.assert_array_equal(first[rows].view(np.uint8), second[rows].view(np.uint8))
            assert (second[: rows.start].view(np.int32) == second[-1:].view(np.int32)).all()
