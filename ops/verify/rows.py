"""Conformance of functions whose rows do not know of each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.verify import compare
from glm5_ascend.ops.verify.case import Call, Case, Outputs, Problem, Verdict, invoke
from glm5_ascend.ops.verify.compare import Figures
from glm5_ascend.ops.verify.requests import poison


@dataclass(frozen=True)
class Expected:
    """One output: bits, or an F64 oracle with its low-precision twin.

    ``step`` as in ``compare.close``.
    """

    oracle: Tensor
    low: Tensor | None = None
    step: float = 0.0

    def judge(self, actual: Tensor, name: str) -> Figures:
        """Compare as the output wants it."""
        if self.low is None:
            return compare.identical(actual, self.oracle, name=name)
        return compare.close(actual, self.oracle, self.low, step=self.step, name=name)


Wanted = Mapping[str, Expected]


@dataclass(frozen=True)
class RowsProblem(Problem):
    """One function call.

    Args:
        function: public function.
        arguments: all of them by name.
        rows: names of the arguments that have one row per token.
        wanted: results by name, in the function's order.
        wrong: what each known mistake would give.
    """

    function: str
    arguments: Mapping[str, Any]
    rows: Collection[str]
    wanted: Wanted
    wrong: Mapping[str, Callable[[], Wanted]] = field(default_factory=dict)

    def run(self, call: Call, *, shuffled: bool = False) -> Outputs:
        """Shuffled: backwards, contiguous, and the first row in a call of its own."""
        count = len(next(iter(self.arguments[name] for name in self.rows)))
        if not shuffled or count < 2:
            return self._call(call, self.arguments)
        last = self._call(call, self._rows(torch.arange(count - 1, 0, -1)))
        first = self._call(call, self._rows(torch.zeros(1, dtype=torch.int64)))
        return {name: torch.cat((first[name], x.flip(0))) for name, x in last.items()}

    def _rows(self, index: Tensor) -> dict[str, Any]:
        return {name: x[index] if name in self.rows else x for name, x in self.arguments.items()}

    def _call(self, call: Call, arguments: Mapping[str, Any]) -> Outputs:
        result = invoke(call, self.function, dict(arguments))
        results = result if isinstance(result, tuple) else (result,)
        return dict(zip(self.wanted, results, strict=True))

    def judge(self, outputs: Outputs) -> Figures:
        """Every output against its oracle."""
        return _judge(outputs, self.wanted)

    def mistakes(self) -> Iterator[tuple[str, Verdict]]:
        """Those given."""
        for name, wanted in self.wrong.items():
            yield name, partial(_judge_mistake, wanted)


def columns(x: Tensor) -> Tensor:
    """The same values as the first columns of a wider tensor."""
    return torch.cat((x, poison(x.shape, x)), -1)[..., : x.shape[-1]]


def _judge_mistake(wanted: Callable[[], Wanted], outputs: Outputs) -> Figures:
    return _judge(outputs, wanted())


def _judge(outputs: Outputs, wanted: Wanted) -> Figures:
    return compare.worst(expected.judge(outputs[name], name) for name, expected in wanted.items())


@dataclass(frozen=True, kw_only=True)
class RowsCase(Case):
    """A call that ``make`` draws from a seed; ``label`` tells cases of a function apart."""

    group: str
    label: str
    make: Callable[[int], RowsProblem]

    @property
    def operator(self) -> str:
        """Name of the group of functions."""
        return self.group

    def __str__(self) -> str:
        return self.label + (f"-seed{self.seed}" if self.seed else "")

    def problem(self) -> Problem:
        """Draw."""
        return self.make(self.seed)
