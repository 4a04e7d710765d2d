"""Instructions that work lane by lane, bit for bit against NumPy, in every form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.emulator.vector import arithmetic, cases, data
from tests.ops.emulator.vector.lanes import active, bits, load, settle, store
from tests.ops.emulator.vector.program import MOST, WIDTH, Bytes, Command, run

NUMBERS, REALS, WORDS = ("int16", "half", "int32", "float"), ("half", "float"), ("int16", "uint16")
BINARY = [(n, k) for n in ("Add", "Sub", "Mul", "Max", "Min") for k in NUMBERS]
BINARY += [("Div", k) for k in REALS] + [(n, k) for n in ("And", "Or") for k in WORDS]
SCALAR = [(n, k) for n in ("Adds", "Muls", "Maxs", "Mins") for k in NUMBERS]
SCALAR += [("LeakyRelu", k) for k in REALS]
SHIFT = [(n, k) for n in ("ShiftLeft", "ShiftRight") for k in (*WORDS, "int32", "uint32")]
UNARY = [(n, k) for n in ("Exp", "Ln", "Sqrt", "Rsqrt", "Reciprocal", "Abs", "Relu") for k in REALS]
UNARY += [("Relu", "int32"), ("Not", "int16"), ("Not", "uint16")]
FUSED = [(n, "half", "half") for n in ("Axpy", "MulAddDst", "FusedMulAdd", "FusedMulAddRelu")]
FUSED += [(n, "float", "float") for n in ("Axpy", "MulAddDst", "FusedMulAdd", "FusedMulAddRelu")]
FUSED += [("Axpy", "float", "half"), ("MulAddDst", "float", "half")]


def value(command: Command, a: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
    """What the lanes of a repeat become."""
    name, kind = command.name, command.dst_type
    if name in arithmetic.BINARY:
        return arithmetic.BINARY[name](a, b)
    scalar = np.array(command.scalar).astype(a.dtype)
    if name in arithmetic.SCALAR:
        return arithmetic.SCALAR[name](a, scalar)
    if name.startswith("Shift"):
        return arithmetic.shifted(name, a, int(command.scalar), bool(command.option), WIDTH[kind])
    if name == "Axpy":
        return arithmetic.fused(a, scalar, d, kind)
    if name == "MulAddDst":
        return arithmetic.fused(a, b, d, kind)
    if name.startswith("FusedMulAdd"):
        total = arithmetic.fused(a, d, b, kind)
        return np.where(total <= 0, np.zeros_like(total), total) if name.endswith("Relu") else total
    return arithmetic.UNARY[name](a)


def apply(command: Command, image: Bytes, actual: Bytes | None = None) -> None:
    """The model: change ``image`` as the command does; near results are taken from ``actual``."""
    kind, source = command.dst_type, command.source
    widest = max(WIDTH[kind], WIDTH[source])
    for repeat, lanes in enumerate(active(command, widest)):
        to, x, y = (
            bits(command, i, k, widest, repeat, lanes) for i, k in enumerate((kind, source, source))
        )
        with np.errstate(all="ignore"):
            result = value(
                command, load(image, source, x), load(image, source, y), load(image, kind, to)
            )
            store(image, kind, to, result)
    if actual is not None:
        for repeat, lanes in enumerate(active(command, widest)):
            to = bits(command, 0, kind, widest, repeat, lanes)
            zeros = command.name.startswith(("Max", "Min"))
            settle(image, actual, kind, to, arithmetic.ULPS.get(command.name, 0), zeros)


def check(commands: list[Command], image: Bytes) -> None:
    """Each command alone on the image, so that differences do not spread."""
    for start in range(0, len(commands), MOST):
        for command in commands[start : start + MOST]:
            expected = image.copy()
            outcome = run([command], image)
            apply(command, expected, outcome.image)
            assert not outcome.report.findings, (command, outcome.report.findings[0])
            wrong = np.flatnonzero(expected != outcome.image)
            assert wrong.size == 0, (
                command,
                wrong[:8],
                expected[wrong[:8]],
                outcome.image[wrong[:8]],
            )


def scalars(rng: np.random.Generator, kind: str) -> Any:
    """A scalar that is exact in its type."""
    if kind in ("half", "float"):
        return float(
            np.float16(rng.choice([0.0, -1.5, 0.1, 3.25, 1000.0, float(rng.standard_normal())]))
        )
    return int(rng.integers(-100, 100)) if kind.startswith("int") else int(rng.integers(0, 100))


@pytest.mark.parametrize(("name", "kind"), BINARY + UNARY)
def test_without_scalar(name: str, kind: str) -> None:
    rng = np.random.default_rng(len(name) * 100 + len(kind))
    image = data.image(rng, (kind,) * 4)
    check([Command(name, kind, **f) for f in cases.forms(rng, WIDTH[kind], 24)], image)


@pytest.mark.parametrize(("name", "kind"), SCALAR)
def test_with_scalar(name: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    image = data.image(rng, (kind,) * 4)
    check(
        [
            Command(name, kind, scalar=scalars(rng, kind), **f)
            for f in cases.forms(rng, WIDTH[kind], 24)
        ],
        image,
    )


@pytest.mark.parametrize(("name", "kind"), SHIFT)
def test_shifts(name: str, kind: str) -> None:
    rng = np.random.default_rng(2)
    image, width = data.image(rng, (kind,) * 4), WIDTH[kind]
    rounds = name == "ShiftRight" and kind.startswith("int")
    check(
        [
            Command(name, kind, scalar=by % (width + 1), option=int(rounds and i % 2), **f)
            for i, (by, f) in enumerate(
                zip(range(0, 3 * width), cases.forms(rng, width, 3 * width), strict=True)
            )
            if not (by and rounds and f["form"] == 0 and i % 2)
        ],
        image,
    )


@pytest.mark.parametrize(("name", "kind", "source"), FUSED)
def test_multiply_add(name: str, kind: str, source: str) -> None:
    rng = np.random.default_rng(3)
    image = data.image(rng, (kind, source, source, source))
    forms = cases.forms(rng, WIDTH[kind], 24)
    check([Command(name, kind, source, scalar=scalars(rng, source), **f) for f in forms], image)
