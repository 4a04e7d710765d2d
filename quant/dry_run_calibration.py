"""What a calibration adds to a dry run: its time and its disk, modelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.config import Glm5Config
from glm5_ascend.quant.calibration.cost import ARITHMETIC, cost_of
from glm5_ascend.quant.command import QuantizeOptions
from glm5_ascend.quant.plan import Plan

# Names of the rates: operations per second of large products by arithmetic.
PRODUCTS = tuple(f"products-{name}" for name in ARITHMETIC)


@dataclass(frozen=True, slots=True)
class Calibrating:
    """What a calibration takes, modelled.

    Attributes:
        tokens: at most so many; the text may have fewer.
        core_seconds: of the forward pass, statistics and rounding.
        disk_bytes: activations in ``directory``.
        directory: for them.
    """

    tokens: int
    core_seconds: float
    disk_bytes: int
    directory: Path

    def as_dict(self) -> dict[str, object]:
        """JSON form; what is modelled says so in its key."""
        return {
            "tokens": self.tokens,
            "modelled_core_seconds": round(self.core_seconds, 1),
            "work_directory": str(self.directory),
            "work_directory_bytes": self.disk_bytes,
        }


def calibrating(
    options: QuantizeOptions,
    config: Glm5Config,
    plan: Plan,
    given: Mapping[str, float],
    known: tuple[dict[str, float], dict[str, str]],
) -> Calibrating | None:
    """What a calibration adds to a run; None without one.

    Args:
        options: of the run.
        config: of the model.
        plan: of the run.
        given: rates to use instead of measured ones, :data:`PRODUCTS` among their keys.
        known: rates, and where they come from; those of a calibration are added.
    """
    if not plan.recipe.needs_calibration:
        return None
    from glm5_ascend.quant.calibration.corpus import sequence_length
    from glm5_ascend.quant.dry_run_rates import products

    rates, sources = known
    measured = products(kind for kind in ARITHMETIC if f"products-{kind}" not in given)
    speed = {}
    for kind, name in zip(ARITHMETIC, PRODUCTS, strict=True):
        speed[kind] = rates[name] = given.get(name) or measured[kind]
        sources[name] = "given" if name in given else "measured"
    wanted = plan.recipe.calibration
    length = sequence_length(config, wanted.tokens, wanted.sequence)
    cost = cost_of(config, plan, wanted.tokens, length)
    directory = options.calibration.directory(options.destination)
    return Calibrating(wanted.tokens, cost.seconds(speed), cost.disk_bytes, directory)
