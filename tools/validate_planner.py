"""Compare the planner's model with every published measurement, and renew deploy/README.md.

    python -m tools.validate_planner [--check] [--left-out]

``--check`` fails where the README differs instead of writing it. ``--left-out`` fits anew without
each source in turn (minutes) and stores its errors on the rows that it had not seen.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glm5_ascend.deploy.performance.effects import EFFECTS, NOT_MODELLED
from glm5_ascend.deploy.performance.measured import (
    QUANTITIES,
    Measurement,
    calibration,
    measurements,
)
from glm5_ascend.deploy.performance.parameters import BOUNDS, Parameters, fitted

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "deploy" / "README.md"
LEFT_OUT = ROOT / "deploy" / "performance" / "left_out.toml"
FIRST_MET = ROOT / "deploy" / "performance" / "blind.toml"
BEGIN, END = "<!-- validation: begin -->", "<!-- validation: end -->"
SOURCES = ("vllm-ascend CI", "cann-recipes", "operators")
_UNITS = {
    "tokens_per_s": "tokens/s",
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "step_ms": "step ms",
}
_GRADES = ("A", "A-")


@dataclass(frozen=True)
class Error:
    """The model's relative error on one quantity of one row."""

    row: Measurement
    quantity: str
    predicted: float

    @property
    def relative(self) -> float:
        """Predicted over published, less one."""
        return self.predicted / self.row.measured[self.quantity] - 1


def errors(parameters: Parameters) -> list[Error]:
    """One entry per published quantity of every row."""
    found = []
    for row in measurements().values():
        predicted = row.predict(parameters)
        found += [Error(row, key, predicted.get(key, 0.0)) for key in row.measured]
    return found


def first_met(found: Sequence[Error]) -> list[Error]:
    """The errors of rows added unseen as they were when the model met them."""
    stored = tomllib.loads(FIRST_MET.read_text(encoding="utf-8"))["tokens_per_s"]
    return [replace(error, predicted=stored[error.row.name]) for error in found]


def elsewhere(found: Sequence[Error]) -> list[Error]:
    """The same errors, with the usual acceptance in rows whose own is inferred."""
    changed = []
    for error in found:
        row = error.row
        if "assumed_elsewhere" in row.values:
            values = {**row.values, "accepted": row.values["assumed_elsewhere"]}
            predicted = replace(row, values=values).predict(fitted())[error.quantity]
            error = replace(error, predicted=predicted)
        changed.append(error)
    return changed


def mean(found: Sequence[Error]) -> float:
    """Mean absolute relative error."""
    return sum(abs(error.relative) for error in found) / len(found)


def held_out(found: Sequence[Error]) -> list[Error]:
    """Errors of counted rows of the two best grades that nothing was fitted to."""
    fitted_to = calibration()[0]
    return [
        error
        for error in found
        if error.row.name not in fitted_to
        and not error.row.uncounted
        and error.row.grade in _GRADES
    ]


def render(found: Sequence[Error], parameters: Parameters) -> str:
    """The section of the README between the markers."""
    parts = [_summary(found), _rows(found), _effects(parameters), _parameters(parameters)]
    return "\n\n".join([BEGIN, *parts, END])


def _summary(found: Sequence[Error]) -> str:
    out = held_out(found)
    lines = ["| held-out rows | quantity | rows | mean error |", "|---|---|---|---|"]

    def add(name: str, chosen: Sequence[Error]) -> None:
        for quantity in QUANTITIES:
            some = [error for error in chosen if error.quantity == quantity]
            if some:
                lines.append(
                    f"| {name} | {_UNITS[quantity]} | {len(some)} | {100 * mean(some):.1f} % |"
                )

    own = [error for error in out if error.row.source.startswith("vllm-ascend CI")]
    late = [error for error in own if error.row.values.get("blind")]
    early = [error for error in own if error not in late]
    add("vllm-ascend CI, the first list", early)
    add(
        "vllm-ascend CI, the first list without M26 to M32, whose acceptance is inferred",
        [error for error in early if "assumed_elsewhere" not in error.row.values],
    )
    add("vllm-ascend CI, added unseen, when first met", first_met(late))
    add("vllm-ascend CI, added unseen, today", late)
    add("vllm-ascend CI, both", own)
    add("vllm-ascend CI, both, 2.6 accepted in M26 to M32 as in other V3.2 rows", elsewhere(own))
    add(
        "vllm-ascend CI, both, GLM (acceptance known)",
        [error for error in own if str(error.row.values["model"]).startswith("glm")],
    )
    add("all of grade A and A-", out)
    if LEFT_OUT.is_file():
        table = tomllib.loads(LEFT_OUT.read_text())["mean_error"]
        lines += [
            f"| rows of {name}, fitted without them | all | {item['rows']} |"
            f" {100 * item['error']:.1f} % |"
            for name, item in table.items()
        ]
    return "\n".join(lines)


def _rows(found: Sequence[Error]) -> str:
    lines = [
        "| row | grade | model | layout | in/out or context | quantity | published | modelled |"
        " error | use |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    names = calibration()[0]
    for error in found:
        row, values = error.row, error.row.values
        size = f"{values['isl']}/{values['osl']}" if "isl" in values else f"{values['context']}"
        use = "fitted" if row.name in names else "held out"
        if row.uncounted:
            use = f"not counted: {row.uncounted}"
        elif row.grade not in _GRADES:
            use = "not counted: grade"
        elif row.values.get("blind"):
            use += ", added unseen"
        lines.append(
            f"| {row.name} | {row.grade} | {values['model']} {values['quant']} |"
            f" {values['layout']} | {size} | {_UNITS[error.quantity]} |"
            f" {row.measured[error.quantity]:.5g} | {error.predicted:.4g} |"
            f" {100 * error.relative:+.0f} % | {use} |"
        )
    return "\n".join(lines)


def _effects(parameters: Parameters) -> str:
    lines = ["| effect | published ratio | modelled | error | source |", "|---|---|---|---|---|"]
    for effect in EFFECTS:
        ratio = effect.ratio(parameters)
        lines.append(
            f"| {effect.name} | {effect.published:.3f} | {ratio:.3f} |"
            f" {100 * (ratio / effect.published - 1):+.0f} % | {effect.source} |"
        )
    lines += [f"| {name} | | not modelled | | {why} |" for name, why in NOT_MODELLED.items()]
    return "\n".join(lines)


def _parameters(parameters: Parameters) -> str:
    lines = ["| fitted number | value | bounds |", "|---|---|---|"]
    for name, (low, high) in BOUNDS.items():
        lines.append(f"| `{name}` | {getattr(parameters, name):.4g} | {low:g} to {high:g} |")
    return "\n".join(lines)


def left_out() -> str:
    """Fit without each source in turn; the text of ``left_out.toml``."""
    from tools.calibrate_planner import fit

    lines = ["# Written by python -m tools.validate_planner --left-out.", "schema = 1"]
    names, operators = calibration()
    for source in SOURCES:
        parameters = fit(source)
        wrong: list[float] = []
        for name in names:
            row = measurements()[name]
            if row.source.startswith(source):
                predicted: Mapping[str, float] = row.predict(parameters)
                wrong += [abs(predicted[key] / value - 1) for key, value in row.measured.items()]
        if source == "operators":
            wrong = [abs(item.predict(parameters) / item.seconds - 1) for item in operators]
        lines += ["", f'[mean_error."{source}"]', f"rows = {len(wrong)}"]
        lines.append(f"error = {sum(wrong) / len(wrong):.4f}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    parser.add_argument("--left-out", action="store_true", help="fit without each source first")
    options = parser.parse_args(arguments)
    if options.left_out:
        LEFT_OUT.write_text(left_out(), encoding="utf-8")
    section = render(errors(fitted()), fitted())
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    renewed = before + section + rest.split(END)[1]
    if options.check:
        if renewed != text:
            print("deploy/README.md differs: run python -m tools.validate_planner")
        return int(renewed != text)
    README.write_text(renewed, encoding="utf-8")
    print(section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
