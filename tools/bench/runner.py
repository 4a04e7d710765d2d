"""Runs one case: verify everyone, time everyone in turns, and make the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tools.bench import twins
from tools.bench.case import Absent, Case, Contestant
from tools.bench.machine import Affinity, Load, Watch, settle
from tools.bench.peaks import (
    Yardstick,
    arithmetic,
    arithmetic_us,
    ceiling,
    floor_us,
    memory_level,
    reading,
)
from tools.bench.timing import Entrant, Timing, race

Row = dict[str, Any]


def measure(case: Case, seconds: float, affinity: Affinity) -> tuple[list[Row], Load, list[str]]:
    """(one row per contestant and yardstick, the load meanwhile, who is absent and why).

    Raises:
        WrongResult: somebody's result is not the reference's; nothing was timed.
    """
    contestants: list[Contestant] = []
    absent: list[str] = []
    set_threads = _switch(affinity)
    for entry in case.enter():
        if isinstance(entry, Absent):
            absent.append(str(entry))
            continue
        set_threads(entry.threads)
        entry.verify()
        contestants.append(entry)
    yardsticks = _yardsticks(case)
    entrants = {key(c.name, c.threads): Entrant(c.run, c.threads) for c in contestants}
    entrants |= {key(y.title, y.threads): Entrant(y.run, y.threads) for y in yardsticks}
    watch = Watch()
    with torch.inference_mode():
        timings = race(entrants, seconds, set_threads=set_threads, settle=settle)
    load = watch.load()
    set_threads(1)
    return rows(case, contestants, yardsticks, timings, load), load, absent


def key(name: str, threads: int) -> str:
    """A contestant's name in its race."""
    return name if threads == 1 else f"{name}, {threads} threads"


def rows(
    case: Case,
    contestants: Sequence[Contestant],
    yardsticks: Sequence[Yardstick],
    timings: dict[str, Timing],
    load: Load,
) -> list[Row]:
    """What was measured, with the limits of the same race."""
    rates, two = (
        {y.name: y.rate(timings[key(y.title, n)].median) for y in yardsticks if y.threads == n}
        for n in (1, 2)
    )
    level = memory_level(case.nbytes)
    common: Row = {
        "op": case.operator,
        "case": case.name,
        "title": case.title,
        "flops": dict(case.flops),
        "bytes": case.nbytes,
        "memory": level,
        "limits": rates,
        "load_average": round(load.load_average, 2),
        "other_cores": round(load.other_cores, 3),
        "stolen_cores": round(load.stolen_cores, 3),
    }
    known = all(kind in rates for kind in case.flops)
    limits: Row = {"floor_us": None, "arithmetic_us": None}
    if known:
        limits["floor_us"] = floor_us(case.flops, case.nbytes, rates, rates[level])
        limits["arithmetic_us"] = arithmetic_us(case.flops, rates)
    alone = [timings[c.name].median for c in contestants if (c.kind, c.threads) == ("project", 1)]
    if known and two and alone:
        limits["ceiling"] = ceiling(min(alone), case.flops, case.nbytes, rates, two, level)
    both = [timings[key(c.name, c.threads)].median for c in contestants if c.kind == twins.KIND]
    if both and alone:
        limits["ceiling"] = twins.ceiling(min(alone), min(both))
    made = [
        {**common, **limits, "contestant": c.name, "kind": c.kind, "threads": c.threads}
        | _times(timings[key(c.name, c.threads)])
        for c in contestants
    ]
    made += [
        {**common, "contestant": y.title, "kind": "limit", "threads": y.threads}
        | {"rate": (rates if y.threads == 1 else two)[y.name], "rate_unit": y.unit}
        | _times(timings[key(y.title, y.threads)])
        for y in yardsticks
    ]
    return made


def _times(timing: Timing) -> Row:
    return {
        "unit": "us",
        "median": timing.median,
        "least": timing.least,
        "p20": timing.p20,
        "p80": timing.p80,
        "n": timing.n,
        "repeats": timing.repeats,
    }


def _yardsticks(case: Case) -> list[Yardstick]:
    found: list[Yardstick] = []
    for threads in (1, 2) if case.scaling else (1,):
        kinds = [arithmetic(kind, threads) for kind in case.flops]
        found += [y for y in kinds if y is not None]
        found.append(reading(memory_level(case.nbytes), threads))
    return found


def _switch(affinity: Affinity) -> Any:
    """A function that sets torch's threads, which the project's kernels follow, and the cores."""
    now = 0

    def set_threads(count: int) -> None:
        nonlocal now
        if count != now:
            affinity.use(count)
            torch.set_num_threads(count)
            now = count

    return set_threads
