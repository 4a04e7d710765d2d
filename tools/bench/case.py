"""What a case is: a problem of fixed size, and those who solve it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.verify.compare import Figures, difference

# |a - o|^2 / (|a|^2 + |o|^2) that a peer may have; bf16 rounding of all intermediate results costs
# about 1e-5, a forgotten ReLU or scale more than 1e-2.
PEER_LIMIT = 1e-4

Check = Callable[[Any], Figures]


class WrongResult(Exception):
    """A contestant's result is not the reference's: it is not worth timing."""


class Absent(Exception):
    """A contestant cannot run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One solution of a case.

    Args:
        name: unique in its case.
        kind: "project" (the public function), "kernel" (its backend, arguments checked before),
            "torch" (eager), "compiled" (torch.compile), "vllm", "library" (the operator's GEMMs
            alone), "pass" (its data copied once) or "twins" (tools/bench/twins.py).
        run: solves the problem; returns what ``check`` judges.
        check: compares with the reference.
        threads: how many it may use.
    """

    name: str
    kind: str
    run: Callable[[], Any]
    check: Check
    threads: int = 1

    def verify(self) -> None:
        """Run once and compare; this also compiles what is compiled on first use.

        Raises:
            WrongResult: the result differs from the reference.
        """
        with torch.inference_mode():
            figures = self.check(self.run())
        if not figures.passed:
            raise WrongResult(f"{self.name}: {figures.problem}")

    def on(self, threads: int) -> Contestant:
        """The same on another number of threads."""
        return replace(self, threads=threads)


@dataclass(frozen=True, slots=True)
class Case:
    """A problem and what it costs at least.

    Args:
        name: for ``--case`` and the rows.
        operator: whose case it is.
        title: what is computed, for people.
        flops: multiplications plus additions of the matrix products, by the yardstick that bounds
            them: "f32", "bf16", "int8".
        nbytes: what has to be read and written at least once.
        enter: yields those who take part; an entry may be the reason why one does not.
        scaling: whether one thread is compared with two here, and nothing else.
    """

    name: str
    operator: str
    title: str
    flops: Mapping[str, float]
    nbytes: float
    enter: Callable[[], Iterator[Contestant | Absent]]
    scaling: bool = False


def near(oracle: Tensor) -> Check:
    """A check for peers, whose arithmetic is their own: ``PEER_LIMIT`` on the squared distance."""

    def check(actual: Tensor) -> Figures:
        wanted = oracle.reshape(-1).double()
        reached = difference(actual.reshape(-1), wanted)
        problem = "" if reached <= PEER_LIMIT else f"squared distance {reached:.2e} of the results"
        return Figures(cosine=reached, problem=problem)

    return check
