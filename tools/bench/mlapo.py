"""Cases of MLA pre-processing, W8A8 dynamic, at the size of one GLM-5 layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.verify.compare import Figures, worst
from tools.bench.case import Absent, Case, Check, Contestant, near
from tools.bench.mlapo_data import (
    DOWN,
    HEADS,
    HIDDEN,
    LATENT,
    NOPE,
    Q_LORA,
    ROPE,
    UP,
    Data,
    Weights,
    written,
)
from tools.bench.mlapo_peers import Eager, gemms


def pass_bytes(tokens: int) -> int:
    """What has to go through memory between and around the matrix products, once.

    Read: x (bf16) and the F32 results of both W8A8 products. Written: the codes of x and of the q
    latent, the parts of the query (bf16) and a cache row (bf16). The absorbed query is written by
    a matrix product itself.
    """
    read = 2 * HIDDEN + 4 * (DOWN + UP)
    written = HIDDEN + Q_LORA + 2 * UP + 2 * (LATENT + ROPE)
    return tokens * (read + written)


def _all_near(expected: tuple[Tensor, ...]) -> Check:
    checks = [near(each) for each in expected if each.numel()]

    def check(actual: tuple[Tensor, ...]) -> Figures:
        given = [each for each in actual if each.numel()]
        return worst(one(each) for one, each in zip(checks, given, strict=True))

    return check


def _one_pass(tokens: int) -> Contestant:
    source = torch.zeros(pass_bytes(tokens) // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    run = lambda: target.copy_(source)  # noqa: E731
    return Contestant("one pass over the data (copy)", "pass", run, near(source))


def case(tokens: int, weights: Callable[[], Weights]) -> Case:
    """One thread: the operator, an eager one, and the library's products alone."""

    def enter() -> Iterator[Contestant | Absent]:
        data = Data(weights(), tokens)
        expected = data.project("reference")()
        yield Contestant("project", "project", data.project("cpu"), _all_near(expected))
        eager = Eager(data)
        check = _all_near((*expected[:2], *(written(cache, tokens) for cache in expected[5:])))
        yield Contestant("torch chain", "torch", lambda: eager(data.x), check)
        yield from gemms(data)
        yield _one_pass(tokens)

    return _case(f"mlapo-{tokens}", tokens, enter)


def scaling(tokens: int, weights: Callable[[], Weights]) -> Case:
    """One thread against two."""

    def enter() -> Iterator[Contestant | Absent]:
        data = Data(weights(), tokens)
        check = _all_near(data.project("reference")())
        for threads in (1, 2):
            yield Contestant("project", "project", data.project("cpu"), check, threads)

    return _case(f"threads-mlapo-{tokens}", tokens, enter, scaling=True)


def _case(name: str, tokens: int, enter: Any, *, scaling: bool = False) -> Case:
    flops = {
        "int8": 2.0 * tokens * (HIDDEN * DOWN + Q_LORA * UP),
        "bf16": 2.0 * tokens * HEADS * NOPE * LATENT,
    }
    weights = HIDDEN * DOWN + Q_LORA * UP + 2 * HEADS * NOPE * LATENT
    nbytes = weights + pass_bytes(tokens) + 2 * tokens * HEADS * LATENT
    title = f"{tokens} token{'s' * (tokens > 1)}, W8A8 dynamic, 6144 -> 64 x (512 + 64)"
    return Case(name, "mlapo", title, flops, nbytes, enter, scaling)
