"""The work of ``glm5-ascend ops emulate``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm5_ascend.ops.emulator import listing
from glm5_ascend.ops.emulator.launch import Options
from glm5_ascend.ops.emulator.report import Order
from glm5_ascend.ops.emulator.sidecar import Sidecar, read
from glm5_ascend.ops.emulator.trial import Result, Trial

SCHEDULERS = ("round-robin", "random", "both")


@dataclass(frozen=True)
class Outcome:
    """All launches of one kernel. ``survivors``: synchronisation that nothing depends on."""

    sidecar: Sidecar
    seconds: float
    results: tuple[Result, ...]
    mutants: int
    survivors: tuple[Order, ...]

    @property
    def passed(self) -> bool:
        """Nothing was found, and every mutant was."""
        return all(result.passed for result in self.results) and not self.survivors

    def as_text(self) -> str:
        """For people."""
        return listing.text(self.sidecar, self.seconds, self.results, self.mutants, self.survivors)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "kernel": self.sidecar.kernel,
            "passed": self.passed,
            "compile_seconds": self.seconds,
            "runs": [
                {
                    "name": result.name,
                    "seconds": result.report.seconds,
                    "instructions": result.report.instructions,
                    "findings": [dataclasses.asdict(f) for f in result.report.findings],
                    "dropped": result.report.dropped,
                    "differences": [dataclasses.asdict(d) for d in result.differences],
                }
                for result in self.results
            ],
            "mutants": self.mutants,
            "survivors": [dataclasses.asdict(order) for order in self.survivors],
        }


def emulate(
    path: Path, *, scheduler: str, seed: int, seeds: int, mutants: bool, sanitize: bool
) -> Outcome:
    """Compile, run and compare the kernel of a KERNEL.toml.

    Args:
        path: of the file.
        scheduler: one of ``SCHEDULERS``.
        seed: of inputs, and the first one of the random scheduler.
        seeds: how many of them.
        mutants: drop each synchronisation in turn.
        sanitize: check the kernel's C++ for undefined behaviour.

    Raises:
        SidecarError, KernelSourceError, LaunchError: see there.
    """
    sidecar = read(path)
    trial = Trial(sidecar, seed, sanitize=sanitize)
    runs: list[tuple[str, Options]] = []
    if scheduler != "random":
        runs.append(("round robin", Options()))
    if scheduler != "round-robin":
        runs += [
            (f"random, seed {s}", Options(scheduler="random", seed=s))
            for s in range(seed, seed + seeds)
        ]
    results = [trial.run(name, options) for name, options in runs]
    orders: Sequence[Order] = ()
    survivors: list[Order] = []
    if mutants and all(result.passed for result in results):
        orders = results[0].report.orders
        survivors = trial.mutants(runs[0][1], orders)
    return Outcome(sidecar, trial.library.seconds, tuple(results), len(orders), tuple(survivors))
