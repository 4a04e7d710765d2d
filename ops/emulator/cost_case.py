"""What the cost model asks of an operator: its inputs at a shape, and what it cannot avoid.

``ops/<operator>/cost_shapes.py`` has ``KEYS`` (defaults of ``--shape``) and ``case(shape)``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from glm5_ascend.errors import Glm5Error

Shape = Mapping[str, int]
OPERATORS = ("lightning_indexer", "sparse_flash_attention", "mlapo")


class CostError(Glm5Error):
    """A shape or operator that has no cost case."""


@dataclass(frozen=True, slots=True)
class Case:
    """An operator at a shape.

    Args:
        run: makes inputs and calls the operator's backend ``emulated``.
        floor: what ``floor_bytes`` are, in words.
        floor_bytes: that any implementation moves between HBM and the cores.
        products: multiply-adds by ``abi.CUBE_TYPES`` that it cannot avoid.
        memory: bytes that ``run`` needs, roughly and never less.
        seconds: estimated time of ``run`` on one core of a host.
        smaller: the shape to emulate instead where that is too long; time is a straight line in
            products between shapes of this kind. None where there is none.
    """

    run: Callable[[], object]
    floor: str
    floor_bytes: int
    products: Mapping[str, int]
    memory: int
    seconds: float
    smaller: Callable[[], Shape | None]


def module(operator: str) -> ModuleType:
    """``cost_shapes`` of the operator.

    Raises:
        CostError: it has none.
    """
    if operator not in OPERATORS:
        raise CostError(f"{operator} has no cost case", f"choose one of {', '.join(OPERATORS)}")
    return importlib.import_module(f"glm5_ascend.ops.{operator}.cost_shapes")


def parse_shape(operator: str, text: str) -> dict[str, int]:
    """``b=1,q=1,s=65536`` with the operator's defaults for what is left out.

    Raises:
        CostError: unknown keys, or values that are no positive numbers.
    """
    keys: Mapping[str, int] = module(operator).KEYS
    shape = dict(keys)
    seen: set[str] = set()
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in keys:
            raise CostError(
                f"--shape: {part!r} is no size of {operator}",
                f"its sizes are {', '.join(keys)}: write {described(keys)}",
            )
        if key in seen:
            raise CostError(
                f"--shape: {key} stands twice", f"give each of {', '.join(keys)} once at most"
            )
        if not value.isdecimal() or len(value) > 9 or (int(value) == 0 and key != "int8"):
            raise CostError(f"--shape: {key} is {value!r}", "give a whole number above 0")
        seen.add(key)
        shape[key] = int(value)
    return shape


def described(shape: Shape) -> str:
    """The shape as it is written on the command line."""
    return ",".join(f"{key}={value}" for key, value in shape.items())


def refuse(condition: bool, what: str, hint: str) -> None:
    """Raise CostError where ``condition`` holds."""
    if condition:
        raise CostError(what, hint)


def halved(shape: Shape, keys: Sequence[str], least: Mapping[str, int]) -> dict[str, int] | None:
    """``shape`` with the first of ``keys`` halved that stays at ``least`` or more."""
    for key in keys:
        if shape[key] // 2 >= least[key]:
            return {**shape, key: shape[key] // 2}
    return None
