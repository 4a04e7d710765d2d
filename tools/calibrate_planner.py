"""Fit the planner's numbers to the calibration list, and write them.

    python -m tools.calibrate_planner [--check] [--leave-out SOURCE]

Least squares on the logarithm of modelled over published, by Levenberg's method with differences;
each number moves between its bounds through a logistic curve, and a weak pull to the middle keeps
those that the data do not determine. Deterministic: the same list gives the same numbers.
``--check`` fits and compares with the stored numbers instead of writing them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from glm5_ascend.deploy.performance.measured import calibration, measurements
from glm5_ascend.deploy.performance.parameters import BOUNDS, FILE, Parameters, fitted, names

Vector = npt.NDArray[np.float64]
_PULL = 0.05
_STEP = 0.02
_ROUNDS = 25
_ENOUGH = 1e-4
# What a quantity that cannot be modelled counts: a factor of e.
_IMPOSSIBLE = 1.0
_AGREE = 0.02

_HEAD = """# Written by python -m tools.calibrate_planner from calibration.toml; not edited by hand.
# Fitted, so modelled: no number here was measured by itself. Meanings: parameters.py.
schema = 1

[value]
"""


def to_parameters(point: Vector) -> Parameters:
    """Parameters inside their bounds for any point of the plane."""
    values = {}
    for name, x in zip(names(), point, strict=True):
        low, high = BOUNDS[name]
        values[name] = low + (high - low) / (1 + math.exp(-float(x)))
    return Parameters(**values)


def residuals(point: Vector, without: str = "") -> Vector:
    """Logarithms of modelled over published of the list, then the pull of each number.

    Args:
        without: leave out rows whose source starts with this text; "operators" leaves those out.
    """
    parameters = to_parameters(point)
    rows, operators = calibration()
    found = []
    for name in rows:
        row = measurements()[name]
        if without and row.source.startswith(without):
            continue
        predicted = row.predict(parameters)
        found += [
            math.log(predicted[key] / value) if key in predicted else _IMPOSSIBLE
            for key, value in row.measured.items()
        ]
    if without != "operators":
        found += [math.log(item.predict(parameters) / item.seconds) for item in operators]
    return np.concatenate([np.array(found), _PULL * point])


def least_squares(function: Callable[[Vector], Vector], start: Vector, rounds: int) -> Vector:
    """Levenberg's method with forward differences."""
    point, damping = start, 1e-2
    current = function(point)
    for _ in range(rounds):
        slopes = np.stack(
            [(function(point + _STEP * axis) - current) / _STEP for axis in np.eye(len(point))],
            axis=1,
        )
        before = float(current @ current)
        for _ in range(6):
            left = slopes.T @ slopes + damping * np.eye(len(point))
            move = np.clip(np.linalg.solve(left, -slopes.T @ current), -1.5, 1.5)
            tried = function(point + move)
            if float(tried @ tried) < before:
                point, current, damping = point + move, tried, damping / 3
                break
            damping *= 4
        after = float(current @ current)
        print(f"sum of squares {after:.4f}", file=sys.stderr)
        if before - after < _ENOUGH * before:
            break
    return point


def fit(without: str = "", rounds: int = _ROUNDS) -> Parameters:
    """The fitted parameters; ``without`` as in :func:`residuals`."""
    start = np.zeros(len(names()))
    return to_parameters(least_squares(lambda point: residuals(point, without), start, rounds))


def render(parameters: Parameters) -> str:
    """The text of ``parameters.toml``."""
    lines = [f"{name} = {getattr(parameters, name):.5g}" for name in names()]
    return _HEAD + "\n".join(lines) + "\n"


def differences(one: Parameters, two: Parameters) -> list[str]:
    """Parameters that differ by more than 2 % of their range."""
    found = []
    for name, (low, high) in BOUNDS.items():
        a, b = getattr(one, name), getattr(two, name)
        if abs(a - b) > _AGREE * (high - low):
            found.append(f"{name}: stored {a:.5g}, fitted {b:.5g}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    parser.add_argument("--leave-out", default="", metavar="SOURCE", help="print, do not write")
    options = parser.parse_args(arguments)
    found = fit(options.leave_out)
    if options.check:
        wrong = differences(fitted(), found)
        print("\n".join(wrong) or "the stored numbers are those of the fit")
        return int(bool(wrong))
    if options.leave_out:
        print(render(found), end="")
        return 0
    FILE.write_text(render(found), encoding="utf-8")
    print(render(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
