"""What a conformance case is: made-up inputs, the public function on them, and a verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.verify.compare import Figures, identical

# ``call(operator, **arguments)`` returns what the public function of that name returns.
Call = Callable[..., Any]
Outputs = dict[str, Tensor]
Verdict = Callable[[Outputs], Figures]

SIZES = ("quick", "normal", "full")
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class Unsupported(Exception):
    """A backend of the caller's declines a case; the text says why."""


class Misbehaved(Exception):
    """A backend did something that is wrong whatever the numbers are."""


class Problem(ABC):
    """One case with its inputs drawn."""

    @abstractmethod
    def run(self, call: Call, *, shuffled: bool = False) -> Outputs:
        """Call the operator; results by name, in an order that ``shuffled`` does not change.

        Args:
            call: the backend under test.
            shuffled: put the requests or rows into the batch in another order.
        """

    @abstractmethod
    def judge(self, outputs: Outputs) -> Figures:
        """Compare with the oracle."""

    def mistakes(self) -> Iterator[tuple[str, Verdict]]:
        """Known mistakes: a name, and whether outputs are what the mistake would give."""
        return iter(())


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    """A case; equal cases have equal inputs.

    Args:
        seed: of the random numbers.
        size: "quick" cases belong to every run, "normal" to the default, "full" to the nightly.
    """

    seed: int = 0
    size: str = "normal"

    @property
    @abstractmethod
    def operator(self) -> str:
        """Operator, or group of small functions, as ``glm5-ascend ops`` lists it."""

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def problem(self) -> Problem:
        """Draw the inputs and compute what the oracle needs."""


def invoke(
    call: Call, operator: str, arguments: dict[str, Any], writes: Collection[str] = ()
) -> Any:
    """Result of ``call``; inputs must be as before, except those it ``writes``.

    Raises:
        Misbehaved: another input changed.
    """
    before = {
        name: value.clone()
        for name, value in arguments.items()
        if isinstance(value, Tensor) and name not in writes
    }
    result = call(operator, **arguments)
    for name, value in before.items():
        if changed := identical(arguments[name], value, name=name).problem:
            raise Misbehaved(f"wrote into an input, {changed}")
    return result
