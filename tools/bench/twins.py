"""Two calls at once, each on a thread of its own: what the machine lets two threads gain."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from tools.bench.case import Check, Contestant, WrongResult

KIND = "twins"
# Calls that each of the two makes in a row, so that waking the second hardly counts.
CALLS = 4
_THREADS = "GLM5_ASCEND_THREADS"


def twins(first: Callable[[], Tensor], second: Callable[[], Tensor], check: Check) -> Contestant:
    """``CALLS`` calls of both functions at once, which share no data but give equal results."""
    other = ThreadPoolExecutor(1, "twin")

    def repeat(function: Callable[[], Tensor]) -> Tensor:
        with torch.inference_mode():
            for _ in range(CALLS - 1):
                function()
            return function()

    def run() -> Tensor:
        before = os.environ.get(_THREADS)
        os.environ[_THREADS] = "1"
        try:
            theirs = other.submit(repeat, second)
            found = repeat(first)
            if not torch.equal(found, theirs.result()):
                raise WrongResult("two calls at once disturb each other")
        finally:
            if before is None:
                del os.environ[_THREADS]
            else:
                os.environ[_THREADS] = before
        return found

    return Contestant(f"project twice at once, {CALLS} calls each", KIND, run, check, threads=2)


def ceiling(alone_us: float, twins_us: float) -> float:
    """How many times as much both do as one in the same time, from one call and ``run`` above."""
    return 2 * CALLS * alone_us / twins_us
