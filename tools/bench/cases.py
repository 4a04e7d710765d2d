"""All cases, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from functools import cache

from tools.bench import attention, indexer, mlapo, topk
from tools.bench.case import Case
from tools.bench.mlapo_data import Weights

LENGTHS = {"32k": 32768, "128k": 131072}
TOKENS = (1, 8, 128)


def every(*, compiled: bool) -> Iterator[Case]:
    """Every case; ``compiled`` adds torch.compile to the peers."""
    weights = cache(Weights.draw)
    for length, count in LENGTHS.items():
        for dtype in ("bf16", "int8"):
            yield indexer.scores(dtype, length, count, compiled=compiled)
            yield indexer.operator(dtype, length, count, compiled=compiled)
    for length, count in LENGTHS.items():
        for kind in topk.KINDS:
            yield topk.case(kind, length, count)
    yield attention.case("bf16", 1, compiled=compiled)
    yield attention.case("bf16", 4, compiled=compiled)
    yield attention.case("f32", 1, compiled=compiled)
    for tokens in TOKENS:
        yield mlapo.case(tokens, weights)
    yield indexer.scaling("bf16", "128k", LENGTHS["128k"])
    yield indexer.scaling("int8", "128k", LENGTHS["128k"])
    yield attention.scaling("bf16", 1)
    yield attention.scaling("bf16", 4)
    yield mlapo.scaling(TOKENS[-1], weights)


def chosen(
    names: Sequence[str], threads: int | None, processors: int, *, compiled: bool
) -> list[Case]:
    """The cases whose names match; ``threads`` 1 or 2 leaves out the others.

    Raises:
        SystemExit: nothing matches, or two threads have one processor.
    """
    cases = [case for case in every(compiled=compiled) if threads != (1 if case.scaling else 2)]
    if names:
        cases = [case for case in cases if any(fnmatch(case.name, name) for name in names)]
    if not cases:
        known = ", ".join(case.name for case in every(compiled=False))
        raise SystemExit(f"error: no case matches; there are {known}")
    if processors >= 2:
        return cases
    left = [case for case in cases if not case.scaling]
    if not left:
        raise SystemExit("error: this process may use one processor, two threads need two")
    if len(left) < len(cases):
        print("one processor allowed: the cases of two threads are left out")
    return left
