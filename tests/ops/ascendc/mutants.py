"""Mutants of synchronisation: one order dropped at run time, which has to be reported."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.ops.emulator.report import Order, Report, Site

# Runs a kernel with one order dropped, or none.
Run = Callable[[Order | None], Report]


@dataclass(frozen=True, slots=True)
class Statement:
    """A synchronisation statement, or pair, by the text of its lines: numbers change too often."""

    kind: str
    first: str
    second: str


def statement(order: Order) -> Statement:
    """Of an order that a launch reports."""
    return Statement(order.kind, _line(order.first), _line(order.second) if order.second else "")


def _line(site: Site) -> str:
    text = Path(site.file).read_text().splitlines()[site.line - 1].strip()
    return f"{Path(site.file).name}: {text}"


def explained(path: Path) -> dict[Statement, str]:
    """Statements of a kernel's mutants.toml whose absence need not be reported, with reasons."""
    rows = tomllib.loads(path.read_text()).get("unreported", [])
    return {Statement(r["kind"], r["first"], r.get("second", "")): r["reason"] for r in rows}


def orders(runs: Mapping[str, Run]) -> dict[Order, list[str]]:
    """Every order that clean runs execute, and the names of these runs."""
    found: dict[tuple[str, str, str], tuple[Order, list[str]]] = {}
    for name, run in runs.items():
        report = run(None)
        assert report.findings == (), f"{name}: {report.findings[0]}"
        for order in report.orders:
            key = order.kind, order.first.key, order.second.key if order.second else ""
            found.setdefault(key, (order, []))[1].append(name)
    return dict(found.values())


def survivors(runs: Mapping[str, Run], where: Mapping[Order, Sequence[str]]) -> list[Order]:
    """Orders whose absence no run reports."""
    return [
        order for order, names in where.items() if all(runs[name](order).clean for name in names)
    ]


def check(
    runs: Mapping[str, Run], unreported: Set[Statement], record: Callable[[str, object], None]
) -> dict[Order, list[str]]:
    """Drop every order of clean runs: all but ``unreported``, 2 % at most, are reported.

    Returns what :func:`orders` does; ``record`` gets how many mutants there were.
    """
    where = orders(runs)
    missed = survivors(runs, where)
    record("mutants", len(where))
    record("unreported", len(missed))
    assert {statement(order) for order in missed} == unreported
    assert len(missed) <= 0.02 * len(where)
    return where
