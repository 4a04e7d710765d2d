"""Modelled time of an operator's launches: per pipe, bound, utilisation, distance to the floors.

Nothing here is measured. Instructions are replayed in the order that the kernel's synchronisation
gives, each at the rate of its pipe; transfers share the bandwidth of HBM and L2 (README.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glm5_ascend.console import format_bytes
from glm5_ascend.errors import DoesNotFit
from glm5_ascend.ops.emulator import abi
from glm5_ascend.ops.emulator.cost_case import Case, CostError, Shape, described, module
from glm5_ascend.ops.emulator.rates import START_UPS, Chip, rates
from glm5_ascend.ops.emulator.recording import Launch, Recorder, record

BINS = 400
# Seconds of emulation above which a smaller shape stands in.
LIMIT = 120.0


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of the busiest core's pipe, or of a memory that all cores share.

    ``work``: at its own rate, without start-up; ``busy``: with waits for shared bandwidth.
    """

    name: str
    work: float
    busy: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """One shape on one chip; times in microseconds, without launch heads.

    ``times`` belong to ``START_UPS``; ``bounds`` are the largest of the rows' ``work`` at each.
    ``slow_fixpipe``: time at no start-up with that rate. ``peak``: part of the cubes' peak that the
    products without padding reach.
    """

    shape: Shape
    launches: int
    times: tuple[float, ...]
    bounds: tuple[float, ...]
    rows: tuple[Row, ...]
    slow_fixpipe: float
    hbm: float
    l2: float
    workspace: float
    floor_bytes: float
    floor_products: float
    seconds: float
    emulated: tuple[Shape, ...]

    @property
    def bound(self) -> Row:
        """What limits the launch at no start-up: the row with the most work."""
        return max(self.rows, key=lambda row: row.work)

    @property
    def floor(self) -> float:
        """The larger floor."""
        return max(self.floor_bytes, self.floor_products)

    @property
    def peak(self) -> float:
        return self.floor_products / self.times[0]


def estimate(
    operator: str, shape: Shape, chip: Chip, limit: float = LIMIT
) -> tuple[Estimate, Recorder]:
    """The estimate of a shape, and the recorder of the largest shape that was emulated.

    Where emulation would take longer than ``limit`` seconds, two smaller shapes are emulated, and
    every figure is taken from the straight line through both, over multiply-adds.

    Raises:
        CostError: no such shape, or none that is small enough.
        DoesNotFit: none that half the memory of this machine holds.
    """
    cases = module(operator)
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    first: Shape = shape
    case: Case = cases.case(shape)
    goal = case
    budget = limit
    while case.seconds > budget or case.memory > room:
        # Two shapes run then, the second with half the work.
        budget = limit / 1.5
        smaller = case.smaller()
        if smaller is None:
            if case.memory > room:
                raise DoesNotFit(
                    f"emulating {described(first)} needs about {format_bytes(case.memory)} of "
                    "memory, and no smaller shape is like it",
                    "give a smaller shape",
                )
            raise CostError(
                f"emulating {described(shape)} takes about {goal.seconds:.0f} s, and no smaller "
                "shape is like it",
                f"raise --limit above {goal.seconds:.0f}",
            )
        first, case = smaller, cases.case(smaller)
    near, recorder = _emulated(first, case, chip)
    if first == shape:
        return near, recorder
    second = case.smaller()
    if second is None:
        raise CostError(
            f"{described(first)} is the smallest shape of its kind, and a line needs two",
            f"raise --limit above {goal.seconds:.0f}",
        )
    far, _ = _emulated(second, cases.case(second), chip)
    return _line(shape, goal, chip, (near, far), (case, cases.case(second))), recorder


def _emulated(shape: Shape, case: Case, chip: Chip) -> tuple[Estimate, Recorder]:
    models = (*(rates(chip, each) for each in START_UPS), rates(chip, 0.0, slow_fixpipe=True))
    with record(Recorder(chip.cubes, models, BINS)) as recorder:
        case.run()
    if not recorder.launches:
        raise CostError("the operator launched no kernel", "check ops/<operator>/emulated.py")
    return summary(shape, recorder.launches, chip, case), recorder


def summary(shape: Shape, launches: Sequence[Launch], chip: Chip, case: Case) -> Estimate:
    """The estimate of launches that follow each other."""
    columns = range(len(START_UPS))
    every = [launch.report.models for launch in launches]
    *times, slow = (
        sum(chip.microseconds(models[i].cycles) for models in every) for i in (*columns, -1)
    )
    parts = [_rows(launches, chip, i) for i in columns]
    floor_products = sum(n / chip.products(kind) for kind, n in case.products.items()) * 1e6
    return Estimate(
        shape,
        len(launches),
        tuple(times),
        tuple(max(row.work for row in rows) for rows in parts),
        tuple(parts[0]),
        slow,
        float(sum(models[0].hbm for models in every)),
        float(sum(models[0].l2 for models in every)),
        float(max(launch.report.workspace for launch in launches)),
        case.floor_bytes / chip.hbm.value * 1e6,
        floor_products,
        sum(launch.report.seconds for launch in launches),
        (shape,),
    )


def _rows(launches: Sequence[Launch], chip: Chip, column: int) -> list[Row]:
    """Of every kind of core and pipe, and of HBM and L2; launches follow each other."""
    found: dict[str, Row] = {}
    for launch in launches:
        model = launch.report.models[column]
        most: dict[str, Row] = {}
        for lane in model.lanes:
            if lane.work == 0:  # only waits
                continue
            name = f"{lane.core[:3]}.{lane.pipe}"
            old = most.get(name, Row(name, 0, 0))
            work, busy = (chip.microseconds(value) for value in (lane.work, lane.busy))
            most[name] = Row(name, max(old.work, work), max(old.busy, busy))
        for name, moved, rate in (
            ("HBM", model.hbm, chip.hbm.value),
            ("L2", model.l2, chip.l2.value),
        ):
            most[name] = Row(name, moved / rate * 1e6, moved / rate * 1e6)
        for name, row in most.items():
            old = found.get(name, Row(name, 0, 0))
            found[name] = Row(name, old.work + row.work, old.busy + row.busy)
    order = [f"{core}.{pipe}" for core in ("AIC", "AIV") for pipe in abi.PIPES] + ["HBM", "L2"]
    return sorted(found.values(), key=lambda row: order.index(row.name))


def _line(
    shape: Shape,
    goal: Case,
    chip: Chip,
    known: tuple[Estimate, Estimate],
    cases: tuple[Case, Case],
) -> Estimate:
    """The straight line through two estimates, over multiply-adds."""
    near, far = known
    x, x_near, x_far = (sum(case.products.values()) for case in (goal, *cases))
    slope = (x - x_near) / (x_near - x_far)

    def at(a: float, b: float) -> float:
        return max(a + slope * (a - b), 0.0)

    names = {row.name: row for row in far.rows}
    rows = tuple(
        Row(row.name, at(row.work, names[row.name].work), at(row.busy, names[row.name].busy))
        for row in near.rows
    )
    products: Mapping[str, int] = goal.products
    return Estimate(
        shape,
        near.launches,
        tuple(map(at, near.times, far.times)),
        tuple(map(at, near.bounds, far.bounds)),
        rows,
        at(near.slow_fixpipe, far.slow_fixpipe),
        at(near.hbm, far.hbm),
        at(near.l2, far.l2),
        at(near.workspace, far.workspace),
        goal.floor_bytes / chip.hbm.value * 1e6,
        sum(n / chip.products(kind) for kind, n in products.items()) * 1e6,
        near.seconds + far.seconds,
        (near.shape, far.shape),
    )
