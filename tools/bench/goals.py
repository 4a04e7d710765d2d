"""The goals of the operators, and whether the rows of a run reach them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

Row = dict[str, Any]


class CaseRows:
    """The rows of one case."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def best(self, *kinds: str, threads: int = 1) -> float | None:
        """The least median of these kinds in microseconds; None without such a row."""
        found = [r["median"] for r in self._rows if r["kind"] in kinds and r["threads"] == threads]
        return min(found, default=None)

    def share(self) -> float | None:
        """Part of the arithmetic's limit that the kernel reaches."""
        ours, limit = self.best("kernel"), self._rows[0].get("arithmetic_us")
        return limit / ours if ours and limit else None

    def gain(self, *kinds: str) -> float | None:
        """How many times faster than the best of these kinds the project is."""
        ours, theirs = self.best("project"), self.best(*kinds)
        return theirs / ours if ours and theirs else None

    def scaling(self) -> float | None:
        """How many times faster two threads are than one."""
        one, two = self.best("project"), self.best("project", threads=2)
        return one / two if one and two else None

    def ceiling(self) -> float | None:
        """What ``scaling`` can be at most on this machine."""
        return self._rows[0].get("ceiling")

    def overhead(self) -> float | None:
        """Time over that of the library's matrix products plus one pass over the data."""
        ours, gemms, once = self.best("project"), self.best("library"), self.best("pass")
        return ours / (gemms + once) if ours and gemms and once else None


@dataclass(frozen=True, slots=True)
class Goal:
    """``measure`` of every case that matches ``cases`` is at least (or at most) ``bound``."""

    cases: str
    what: str
    measure: Callable[[CaseRows], float | None]
    bound: float
    at_most: bool = False
    percent: bool = False

    def show(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.percent else f"{value:.2f}x"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal for one case; ``margin`` is how far beyond (or, if negative, short of) its bound."""

    case: str
    goal: str
    measured: str
    margin: float

    @property
    def reached(self) -> bool:
        return self.margin >= 0

    @property
    def by(self) -> str:
        """The margin in words."""
        if self.margin >= 1:
            return f"reached by a factor of {1 + self.margin:.1f}"
        return f"{'reached' if self.reached else 'MISSED'} by {100 * abs(self.margin):.1f} %"

    def __str__(self) -> str:
        return f"goal {self.case}: {self.goal}; measured {self.measured}; {self.by}"


def _gain(*kinds: str) -> Callable[[CaseRows], float | None]:
    return lambda rows: rows.gain(*kinds)


_TORCH = _gain("torch", "compiled")
_EAGER = _gain("torch")
_FASTER = "times faster than torch's best"
_NEVER = "never slower than torch.topk(sorted=False)"
GOALS = (
    Goal(
        "indexer-scores-bf16-*",
        "kernel's share of the bf16 peak",
        CaseRows.share,
        0.85,
        percent=True,
    ),
    Goal(
        "indexer-scores-int8-*",
        "kernel's share of the int8 peak",
        CaseRows.share,
        0.80,
        percent=True,
    ),
    Goal("indexer-*bf16-32k", _FASTER, _TORCH, 1.15),
    Goal("indexer-*bf16-128k", _FASTER, _TORCH, 1.5),
    Goal("indexer-*int8-*", _FASTER, _TORCH, 1.5),
    Goal("topk-random-128k", "times faster than torch.topk(sorted=False)", _EAGER, 20.0),
    Goal("topk-random-32k", _NEVER, _EAGER, 1.0),
    Goal("topk-[!r]*", _NEVER, _EAGER, 1.0),
    Goal(
        "attention-bf16-1q", "kernel's share of the bf16 peak", CaseRows.share, 0.70, percent=True
    ),
    Goal(
        "attention-bf16-1q",
        "kernel's share of the bf16 peak, aim",
        CaseRows.share,
        0.80,
        percent=True,
    ),
    Goal("attention-*", "never slower than torch eager", _EAGER, 1.0),
    Goal(
        "mlapo-*",
        "time over its library GEMMs plus one pass",
        CaseRows.overhead,
        1.10,
        at_most=True,
    ),
    Goal("mlapo-*", "never slower than torch eager", _EAGER, 1.0),
    Goal("threads-*", "two threads over one", CaseRows.scaling, 1.8),
)


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Every goal for every case that was measured, in the order of the rows."""
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    found = []
    for case, own in cases.items():
        for goal in GOALS:
            value = goal.measure(CaseRows(own)) if fnmatch(case, goal.cases) else None
            if value is not None:
                found.append(_verdict(goal, case, value, CaseRows(own).ceiling()))
    return found


def _verdict(goal: Goal, case: str, value: float, ceiling: float | None) -> Verdict:
    margin = goal.bound / value - 1 if goal.at_most else value / goal.bound - 1
    sign = "≤" if goal.at_most else "≥"
    measured = goal.show(value)
    if ceiling is not None and goal.measure is CaseRows.scaling:
        measured += f" of {goal.show(ceiling)} possible"
    return Verdict(case, f"{goal.what} {sign} {goal.show(goal.bound)}", measured, margin)
