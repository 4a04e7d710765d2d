"""The indexer without a matrix of logits: bounds that are too high or too low lose no key."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops.lightning_indexer import triton_fused
from glm5_ascend.ops.triton import tuning
from glm5_ascend.ops.triton.tuning import Indexer
from glm5_ascend.ops.verify.compare import require
from glm5_ascend.ops.verify.indexer import IndexerCase
from glm5_ascend.ops.verify.requests import Requests
from glm5_ascend.ops.verify.runner import public, run_one

E4M3 = torch.float8_e4m3fn
# Rows that see 0, 1, count, count + 1 keys, no more than the sample, and many.
RAGGED = Requests("ragged", ((3, 190), (1, 16), (1, 17), (1, 0), (1, 1), (2, 70)), seed=7)
LONG = Requests("long", ((1, 400),), seed=8)
COUNT = 16
TIGHT = Indexer(32, 64, 4, 1, samples=64, room=64)


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Which rows of each call the sample did not do for."""
    seen: list[Tensor] = []
    real = triton_fused.selected

    def spy(rows: object, asked: Tensor, logits: Tensor, *, some: bool) -> None:
        assert some, "a matrix of logits"
        seen.append(asked.clone())
        real(rows, asked, logits, some=some)  # type: ignore[arg-type]

    monkeypatch.setattr(triton_fused, "selected", spy)
    return seen


def judge(case: IndexerCase, how: Indexer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "indexer", lambda *_: how)
    problem = case.problem()
    require(problem.judge(problem.run(public("triton"))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, E4M3], ids=str)
def test_ragged_rows(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, wanted: list[Tensor]
) -> None:
    case = IndexerCase(requests=RAGGED, heads=16, dtype=dtype, count=COUNT)
    judge(case, TIGHT._replace(room=128), monkeypatch)
    assert not wanted[0].all()


@pytest.mark.parametrize("kind", ["equal", "two_values", "all_zero", "mostly_nan"])
def test_equal_scores_overflow_and_lose_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch, wanted: list[Tensor]
) -> None:
    judge(IndexerCase(requests=LONG, heads=16, kind=kind, count=COUNT), TIGHT, monkeypatch)
    assert wanted[0][0] == 1


@pytest.mark.parametrize("kind", ["rising", "falling", "random", "not_a_number"])
def test_the_bound_does(kind: str, monkeypatch: pytest.MonkeyPatch, wanted: list[Tensor]) -> None:
    judge(
        IndexerCase(requests=LONG, heads=16, kind=kind, count=COUNT),
        TIGHT._replace(room=256), monkeypatch,
    )  # fmt: skip
    assert wanted[0][0] == 0


def test_too_few_and_too_many(monkeypatch: pytest.MonkeyPatch, wanted: list[Tensor]) -> None:
    """Bounds from elsewhere: nothing reaches one, everything the other."""
    real = triton_fused.bounds
    for bound in (-1, 0):

        class Planted:
            def __getitem__(self, grid: tuple[int, ...]) -> object:
                return lambda samples, visible, to, *rest, **options: to.fill_(bound)  # noqa: B023

        monkeypatch.setattr(triton_fused, "bounds", Planted())
        judge(IndexerCase(requests=LONG, heads=16, count=COUNT), TIGHT, monkeypatch)
        assert wanted[-1][0] == 1
    monkeypatch.setattr(triton_fused, "bounds", real)


def test_bits_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "indexer", lambda *_: TIGHT)
    requests = Requests("two", ((2, 100), (1, 90)))
    case = IndexerCase(requests=requests, heads=16, count=COUNT)
    run_one(case, case.problem(), "triton", public("triton")).require()
