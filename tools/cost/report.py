"""The rows of a run as text for the terminal and as the tables of README.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glm5_ascend.ops.emulator.rates import LAUNCH_HEAD, START_UPS
from tools.cost.cases import CHIP, ENTRIES, PUBLISHED, Goal, Published, ours

Row = Mapping[str, Any]
_GOALS = {entry.name: entry.goals for entry in ENTRIES}


def line(row: Row) -> str:
    """One row for the terminal."""
    times = " ".join(f"{time:9.2f}" for time in row["times"])
    goals = "; ".join(_verdict(goal, row) for goal in _GOALS.get(row["case"], ()))
    more = ", EXTRAPOLATED" if row["extrapolated"] else ""
    return f"{row['case']:24} {times} us, bound {row['bound']}{more}; {goals}"


def _state(goal: Goal, row: Row) -> str:
    margin = goal.margin(goal.measure(row))
    return "reached" if margin >= 0 else f"MISSED by {-100 * margin:.0f} %"


def _limit(goal: Goal) -> str:
    return f"{'≥' if goal.at_least else '≤'} {goal.show(goal.bound)}"


def _verdict(goal: Goal, row: Row) -> str:
    value = goal.show(goal.measure(row))
    return f"{value} {goal.what}, goal {_limit(goal)}: {_state(goal, row)}"


def markdown(rows: Sequence[Row]) -> str:
    """Both tables, and where they come from."""
    columns = " | ".join(f"start-up {start:g} µs" for start in START_UPS)
    out = [
        f"Modelled on {CHIP} (one die), not measured; microseconds without the launch head of about"
        f" {LAUNCH_HEAD.value:g} µs. The start-up of a transfer to or from GM is not published, so"
        " each time is given for three. Bounds, floors and goals are those of no start-up. The"
        " documented rate from L0C to GM is three times a published fit; the last column of times"
        " has the fit.",
        "",
        f"| case | {columns} | slow Fixpipe | bound | over bound | over byte floor | of cube peak |"
        " goals |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---|",
    ]
    out += [_row(row) for row in rows]
    out += [
        "",
        "Published numbers beside modelled ones, which include the launch head. First what the"
        " rates give for the published kernel's own steps, by formula; then this project's kernel,"
        " which is another one, emulated.",
        "",
        "| published by others | number | modelled: their steps | modelled: this kernel | |",
        "|---|---:|---:|---:|---|",
    ]
    known = {row["case"]: row for row in rows}
    out += [_published(each, known) for each in PUBLISHED]
    out += ["", _origin(rows)]
    return "\n".join(out) + "\n"


def _row(row: Row) -> str:
    cells = [f"`{row['case']}`: {_shape(row)}"]
    cells += [f"{time:.1f}" for time in row["times"]]
    cells += [
        f"{row['slow_fixpipe']:.1f}",
        row["bound"],
        f"{row['times'][0] / row['bounds'][0]:.2f}x",
        f"{row['times'][0] / row['floor_bytes']:.2f}x"
        if row["floor_bytes"] > row["floor_products"]
        else "–",
        f"{100 * row['cube_peak']:.0f} %",
        "; ".join(
            f"{goal.short} {_limit(goal)}: {_state(goal, row)}"
            for goal in _GOALS.get(row["case"], ())
        )
        or "–",
    ]
    return f"| {' | '.join(cells)} |"


def _shape(row: Row) -> str:
    text = ",".join(f"{key}={value}" for key, value in row["shape"].items())
    if not row["extrapolated"]:
        return text
    used = " and ".join(
        ",".join(f"{key}={value}" for key, value in shape.items() if value != row["shape"][key])
        for shape in row["emulated"]
    )
    return f"{text} (extrapolated from {used})"


def _published(each: Published, rows: Mapping[str, Row]) -> str:
    kernel = ours(each, rows)
    if not each.value or (each.steps is None and kernel is None):
        return f"| {each.what} | {each.number} | – | – | not compared: {each.note} |"
    bound = rows[each.entry]["bound"] if each.entry in rows else ""
    cells = f"{_ratio(each.steps, each, '')} | {_ratio(kernel, each, f', bound by {bound}')}"
    return f"| {each.what} | {each.number} | {cells} | {each.note} |"


def _ratio(value: float | None, each: Published, why: str) -> str:
    if value is None:
        return "–"
    ratio = value / each.value
    outside = "" if 0.5 <= ratio <= 2 else f", NOT within 2x{why}"
    return f"{value:.1f} ({ratio:.2f}x{outside})"


def _origin(rows: Sequence[Row]) -> str:
    row = rows[0]
    dirty = " with local changes" if row["dirty"] else ""
    return (
        f"{row['date'][:10]}, commit {row['commit'][:12]}{dirty}; every modelled number is in a row"
        f" of `tools/results/cost.jsonl`, made by `{row['command']}`. Rates, their sources and what"
        " the model leaves out: [ops/emulator](emulator/README.md)."
    )
