"""Time the CPU operators beside torch, torch.compile and vLLM's kernels, and check their goals.

``python -m tools.bench_ops`` measures every case in one process, prints what it finds and appends
one row per contestant to ``tools/results/ops_cpu.jsonl``; a run of chosen cases is recorded only
where ``--json`` says. ``--render`` fills ops/SPEED.md, between ``<!-- generated: ops -->`` and
``<!-- end -->``, with the last recorded run; ``--check`` fails where it shows another.

Two variables are set for the measurement unless the environment has them. ``THP_MEM_ALLOC_ENABLE``
1: torch puts tensors of 2 MiB and more into large pages. ``OMP_WAIT_POLICY`` passive: torch's
OpenMP threads sleep between parallel regions; by default they spin for milliseconds on the core
that the contestant of the next turn works on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.native import isa
from tools.bench import cases, report
from tools.bench.case import WrongResult
from tools.bench.goals import verdicts
from tools.bench.machine import QUIET, Affinity, Watch, busy_shares
from tools.bench.runner import measure
from tools.results_table import OPS_SPEED as README
from tools.results_table import ROOT, last_run, provenance

ROWS = ROOT / "tools" / "results" / "ops_cpu.jsonl"

Row = dict[str, Any]
_LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"
_WAITING = "OMP_WAIT_POLICY"
_WANTED = {_LARGE_PAGES: "1", _WAITING: "passive"}


def origin(command: Sequence[str]) -> Row:
    """Where the rows of this run come from."""
    return provenance(command) | {
        "isa": isa.selected().name,
        "large_pages": os.environ.get(_LARGE_PAGES) == "1",
        "omp_wait_policy": os.environ.get(_WAITING),
    }


def run(names: Sequence[str], threads: int | None, seconds: float, compiled: bool) -> list[Row]:
    """Measure and print the chosen cases; their rows.

    Raises:
        WrongResult: a contestant's result is not the reference's.
    """
    shares = busy_shares(0.5)
    affinity = Affinity(shares)
    print(f"processor {affinity.quietest} of {affinity.allowed} for one thread")
    print("busy now: " + ", ".join(f"cpu{n} {100 * share:.0f} %" for n, share in shares.items()))
    if any(share > QUIET for share in shares.values()):
        print("THE MACHINE IS NOT IDLE: the numbers below are provisional")
    chosen = cases.chosen(names, threads, len(affinity.allowed), compiled=compiled)
    watch, rows = Watch(), []
    for case in chosen:
        found, load, absent = measure(case, seconds, affinity)
        print("\n" + "\n".join(report.lines(found)))
        print(f"  {load}")
        for reason in absent:
            print(f"  not measured: {reason}")
        sys.stdout.flush()
        rows += found
    print(f"\nwhole run: {watch.load()}")
    return rows


def main(argv: Sequence[str]) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="tools.bench_ops", description=__doc__)
    parser.add_argument("--case", nargs="+", default=[], help="patterns, as topk-* [all cases]")
    parser.add_argument("--seconds", type=float, default=5.0, help="per case [5]")
    parser.add_argument(
        "--threads", type=int, choices=(1, 2), help="1: one thread only; 2: two against one [both]"
    )
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--json", type=Path, help="append the rows there")
    parser.add_argument("--render", action="store_true", help="only fill ops/SPEED.md")
    parser.add_argument("--check", action="store_true", help="only compare ops/SPEED.md")
    args = parser.parse_args(argv)
    if args.check:
        problems = report.check(README, ROWS)
        print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
        return int(bool(problems))
    if args.render:
        if not ROWS.is_file():
            parser.error(f"{ROWS.name} does not exist: run without options")
        text = README.read_text(encoding="utf-8")
        table = report.markdown(last_run(ROWS))
        README.write_text(report.rendered(text, table), encoding="utf-8")
        return 0
    source = origin(["python", "-m", "tools.bench_ops", *argv])
    try:
        rows = run(args.case, args.threads, args.seconds, not args.no_compile)
    except WrongResult as error:
        print(f"error: not timed, since the result is wrong: {error}", file=sys.stderr)
        return 1
    except BackendUnavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(map(str, verdicts(rows))))
    file = args.json or (None if args.case or args.threads else ROWS)
    if file is not None:
        with file.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(source | row) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    if not _WANTED.keys() <= os.environ.keys():
        # torch has read them by now, so the program starts anew.
        command = [sys.executable, "-m", "tools.bench_ops", *sys.argv[1:]]
        os.execve(sys.executable, command, _WANTED | dict(os.environ))
    sys.exit(main(sys.argv[1:]))
