"""Run the emulator's long tests: many schedules, every mutant, conformance at full sizes.

``make nightly``, or ``python -m tools.nightly [--seeds N] [--only KERNEL] [--record]``. Fails as
pytest does. With ``--record``, a run without a failure appends one row per kernel to
``tools/results/ascendc_emulated.jsonl``. Nothing in it is measured on an NPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.console import note
from tools.results_table import ROOT, provenance

TESTS = ROOT / "tests" / "ops" / "ascendc"
EMULATOR = ROOT / "tests" / "ops" / "emulator"
ROWS = ROOT / "tools" / "results" / "ascendc_emulated.jsonl"


class Tally:
    """Adds up what the tests of each kernel record; a pytest plugin."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        file = Path(report.nodeid.partition("::")[0])
        if report.when != "call" or file.parent.name != TESTS.name:
            return
        counts = self.counts[file.stem.removeprefix("test_")]
        counts["tests"] += 1
        counts[report.outcome] += 1
        for name, value in report.user_properties:
            counts[name] += int(str(value))


def rows(tally: Tally, seeds: int, seconds: float, command: Sequence[str]) -> list[dict[str, Any]]:
    """One row per kernel."""
    origin = provenance(command) | {"source": "emulated", "seeds": seeds, "seconds": round(seconds)}
    return [
        origin | {"kernel": name} | dict(sorted(counts.items()))
        for name, counts in sorted(tally.counts.items())
    ]


def main(argv: Sequence[str]) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="tools.nightly", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="schedules per scene [200]")
    parser.add_argument("--record", action="store_true", help=f"append rows to {ROWS.name}")
    kernels = sorted(path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py"))
    parser.add_argument("--only", choices=kernels, help="one kernel, and no tests of the emulator")
    options = parser.parse_args(argv)
    if options.seeds < 1:
        parser.error(f"--seeds must be positive, not {options.seeds}")
    os.environ["GLM5_NIGHTLY_SEEDS"] = str(options.seeds)
    tally, start = Tally(), time.monotonic()
    chosen = [TESTS / f"test_{options.only}.py"] if options.only else [TESTS, EMULATOR]
    failed = pytest.main(["-q", "--durations=10", *map(str, chosen)], plugins=[tally])
    if failed:
        return int(failed)
    command = ["python", "-m", "tools.nightly", *argv]
    found = rows(tally, options.seeds, time.monotonic() - start, command)
    for row in found:
        figures = {k: v for k, v in row.items() if k in tally.counts[row["kernel"]]}
        note(f"{row['kernel']}: " + ", ".join(f"{v} {k}" for k, v in figures.items()))
    if options.record:
        with ROWS.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
