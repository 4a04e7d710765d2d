"""The published measurement that is closest to a plan, and how well the model meets it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from glm5_ascend.deploy.performance.measured import Measurement, measurements
from glm5_ascend.deploy.performance.parameters import Parameters
from glm5_ascend.deploy.planner.search import Point
from glm5_ascend.deploy.planner.targets import Targets

# What a difference in kind weighs against a factor of two in a size.
_OTHER_ROLE, _OTHER_FAMILY, _OTHER_CHIP, _OTHER_QUANT = 3.0, 2.0, 2.0, 0.5
_CLOSE, _GOOD = 3.0, 0.15


@dataclass(frozen=True, slots=True)
class Nearest:
    """A row, its distance in factors of two, and the model's relative error on it."""

    row: Measurement
    distance: float
    error: float

    @property
    def confidence(self) -> str:
        """``fair`` where a close row is met within 15 %, else ``low``."""
        return "fair" if self.distance <= _CLOSE and abs(self.error) <= _GOOD else "low"

    def text(self) -> str:
        """One line about the row."""
        values = self.row.values
        speed = self.row.measured["tokens_per_s"]
        return (
            f"{self.row.name}, {values['model']} {values['quant']} {values['layout']},"
            f" {values['isl']}/{values['osl']}, prefix {values['prefix']:g}, concurrency"
            f" {values['concurrency']}: {speed:,.0f} tokens/s published ({self.row.source});"
            f" the model is {100 * self.error:+.0f} % off"
        )


def nearest(targets: Targets, point: Point, parameters: Parameters) -> Nearest:
    """The closest counted serving row with a published throughput."""
    rows = [
        row
        for row in measurements().values()
        if row.kind == "serving" and not row.uncounted and "tokens_per_s" in row.measured
    ]
    row = min(rows, key=lambda item: _distance(targets, point, item))
    return Nearest(row, _distance(targets, point, row), _error(row.name, parameters))


@cache
def _error(name: str, parameters: Parameters) -> float:
    row = measurements()[name]
    return row.predict(parameters)["tokens_per_s"] / row.measured["tokens_per_s"] - 1


def _distance(targets: Targets, point: Point, row: Measurement) -> float:
    values, layout = row.values, row.layout
    decode = layout.decode or layout.mixed
    own = point.decoding.settings
    if decode is None:
        raise ValueError(row.name)
    load = point.sequences * own.group.dp * own.group.copies
    held = targets.concurrency or load
    found = sum(
        abs(math.log2(float(one) / float(two)))
        for one, two in (
            (own.group.tp, decode.tp),
            (targets.hardware.dies, layout.dies),
            (targets.prompt, values["isl"]),
            (targets.fresh, values["isl"] * (1 - values["prefix"])),
            (held / targets.hardware.dies, values["concurrency"] / layout.dies),
        )
    )
    found = float(found) / 2
    found += _OTHER_ROLE * ((point.second is None) != (layout.mixed is not None))
    found += _OTHER_FAMILY * (not str(values["model"]).startswith("glm"))
    found += _OTHER_CHIP * (not str(values["sku"]).startswith(own.sku.chip.lower()))
    return found + _OTHER_QUANT * (str(values["quant"]) != own.quant)
