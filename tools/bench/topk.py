"""Cases of the choice alone: the 2048 largest of one row of F32 scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.verify.compare import Figures, identical
from tools.bench import kernels
from tools.bench.case import Absent, Case, Contestant
from tools.bench.indexer_data import CHOSEN
from tools.bench.peers import vllm

_SEED = 7


def _random(count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(_SEED))


def _two_values(count: int) -> Tensor:
    return torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(_SEED)).float()


KINDS: dict[str, Callable[[int], Tensor]] = {
    "random": _random,
    "equal": torch.ones,
    "ascending": lambda count: _random(count).sort().values,
    "descending": lambda count: _random(count).sort(descending=True).values,
    "two-values": _two_values,
}


def best(scores: Tensor, count: int) -> Tensor:
    """int32 [count] ascending positions of the largest; equal scores: the lower position."""
    order = scores.sort(descending=True, stable=True).indices[:count]
    return order.sort().values.int()


def case(kind: str, length: str, count: int) -> Case:
    """One thread; torch may return the positions in any order, and any of equal scores."""

    def enter() -> Iterator[Contestant | Absent]:
        scores = KINDS[kind](count)
        expected = best(scores, CHOSEN)
        run = kernels.top_k(scores, CHOSEN)
        yield Contestant(
            "project", "project", run, lambda found: identical(found, expected, name="positions")
        )
        run = lambda: scores.topk(CHOSEN, sorted=False).indices  # noqa: E731
        yield Contestant("torch.topk(sorted=False)", "torch", run, _same_values(scores, CHOSEN))
        yield vllm("vllm topk_transform, k = 512", _vllm(scores), _same_values(scores, 512))

    title = f"2048 largest of {length} {kind.replace('-', ' ')} F32 scores"
    nbytes = 4 * (count + CHOSEN)
    return Case(f"topk-{kind}-{length}", "lightning_indexer", title, {}, nbytes, enter)


def _same_values(scores: Tensor, count: int) -> Callable[[Tensor], Figures]:
    expected = scores.sort(descending=True).values[:count]

    def check(found: Tensor) -> Figures:
        chosen = torch.unique(found.long())
        return identical(scores[chosen].sort(descending=True).values, expected, name="values")

    return check


def _vllm(scores: Tensor) -> Callable[[Any], Callable[[], Tensor]]:
    block = 128
    length = torch.tensor([len(scores)], dtype=torch.int32)
    table = torch.arange(len(scores) // block, dtype=torch.int32)[None]
    slots = torch.empty(1, 512, dtype=torch.int32)
    positions = torch.empty_like(slots)

    def make(operators: Any) -> Callable[[], Tensor]:
        def run() -> Tensor:
            operators.topk_transform_512_cpu(scores[None], length, table, slots, block, positions)
            return positions

        return run

    return make
