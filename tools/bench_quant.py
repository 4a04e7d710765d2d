"""Time the quantiser's kernels at a release's own shapes and extrapolate to the whole release.

``python -m tools.bench_quant`` measures one core on cold files, three different ones per shape,
and appends its rows to ``tools/results/quant_cpu.jsonl``. ``--render`` fills quant/RESULTS.md,
between ``<!-- generated: quant-speed -->`` and ``<!-- end -->``, with the last run; ``--check``
fails where it shows another.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.native import isa
from glm5_ascend.quant.backend import CPU
from glm5_ascend.quant.rotation import Orthogonal, rotations
from glm5_ascend.quant.workers import one_thread
from tools.bench.machine import Affinity, Watch, busy_shares
from tools.quant_bench import report
from tools.quant_bench.cases import RELEASE, Case, Release, release
from tools.quant_bench.extrapolate import whole
from tools.quant_bench.measure import (
    checkpoints,
    limits,
    reference,
    source_bytes,
    stored_bytes,
    times,
)
from tools.results_table import QUANT_RESULTS as README
from tools.results_table import ROOT, last_run, provenance

ROWS = ROOT / "tools" / "results" / "quant_cpu.jsonl"

Row = dict[str, Any]
# The path in torch takes tens of nanoseconds per weight.
_MOST_FOR_TORCH = 1 << 24
# A kind of FP8 matrix with less of the weights has the time of its BF16 twin.
_LEAST_SHARE = 0.005


def measured(found: Release, matrices: dict[str, Orthogonal], home: Path) -> Iterator[Row]:
    """One row per kind of matrix of a release."""
    everything = sum(case.total for case in found.cases)
    for case in found.cases:
        if case.dtype == "F8_E4M3" and case.total < _LEAST_SHARE * everything:
            continue
        if found.name.endswith("FP8") and case.dtype == "BF16":
            continue
        yield row(found, case, matrices, home)


def row(found: Release, case: Case, matrices: dict[str, Orthogonal], home: Path) -> Row:
    """Measure one case."""
    with checkpoints(case, found.name, home) as folders:
        made: Row = {
            "kind": "case",
            "release": found.name,
            "case": case.name,
            "shape": list(case.step.shape),
            "source_dtype": case.dtype,
            "scheme": case.step.scheme.value,
            "turned": turned(case),
            "share": case.total / sum(c.total for c in found.cases),
            "bytes": (source_bytes(case) + stored_bytes(case.step)) / case.weights,
            **times(case.step, folders, matrices).as_dict(),
        }
        if case.weights <= _MOST_FOR_TORCH and case.dtype == "BF16":
            made["torch_ns"] = reference(case.step, folders, matrices).as_dict()["ns"]
    return made


def turned(case: Case) -> str:
    """Which sides are rotated."""
    fold = case.step.fold
    sides = (("columns", fold.columns), ("rows", fold.rows))
    return " and ".join(name for name, axis in sides if axis is not None) or "neither"


def run() -> list[Row]:
    """Measure everything and print it; the rows."""
    CPU.require()
    affinity, watch = Affinity(busy_shares(0.5)), Watch()
    affinity.use(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="glm5-ascend-") as name, one_thread():
        for title in (RELEASE, f"{RELEASE}-FP8"):
            found = release(title)
            matrices = rotations(found.config)
            for made in measured(found, matrices, Path(name)):
                rows.append(made)
                print(report.line(made), flush=True)
        rates = limits()
    rows.append({"kind": "limits", **rates})
    rows += [whole(release(title), rows, rates) for title in (RELEASE, f"{RELEASE}-FP8")]
    load = watch.load()
    print(f"whole run: {load}")
    disturbed = {"other_cores": load.other_cores, "stolen_cores": load.stolen_cores}
    return [made | disturbed for made in rows]


def main(argv: Sequence[str]) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="tools.bench_quant", description=__doc__)
    parser.add_argument("--json", type=Path, default=ROWS, help="append the rows there")
    parser.add_argument("--render", action="store_true", help="only fill quant/RESULTS.md")
    parser.add_argument("--check", action="store_true", help="only compare quant/RESULTS.md")
    args = parser.parse_args(argv)
    if args.check:
        problems = report.check(README, ROWS)
        print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
        return int(bool(problems))
    if args.render:
        if not ROWS.is_file():
            parser.error(f"{ROWS.name} does not exist: run without options")
        text = README.read_text(encoding="utf-8")
        README.write_text(report.rendered(text, report.markdown(last_run(ROWS))), encoding="utf-8")
        return 0
    source = provenance(["python", "-m", "tools.bench_quant"])
    try:
        rows = run()
    except BackendUnavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with args.json.open("a", encoding="utf-8") as out:
        shared = source | {"isa": isa.selected().name}
        out.writelines(json.dumps(shared | made) + "\n" for made in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
