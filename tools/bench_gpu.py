"""Check and time the Triton operators beside their peers on one GPU, in at most five minutes.

``python -m tools.bench_gpu`` runs the most telling shapes first. Everyone's result on fresh random
inputs is compared with F64 before anybody is timed: a wrong kernel is a row that says so, and so is
a peer that is missing or a kernel that fails, faults or hangs. Rows are appended to
``tools/results/ops_gpu.jsonl`` as they come to be; Ctrl-C keeps them. Peers come from the wheels
that ``tools/fetch_gpu_peers.sh`` gathers. ``--render`` fills ops/README.md, between
``<!-- generated: gpu -->`` and ``<!-- end -->``, with the last run; ``--check`` fails where it
shows another.

It needs a CUDA device, torch and triton 3.6; nothing of it has been run on a GPU yet. Exit codes: 0
done; 1 a kernel of this project is wrong or failed; 2 wrong usage; 5 no usable device; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TextIO

from glm5_ascend.errors import BackendUnavailable, ExitCode
from tools.gpu_bench import machine, report
from tools.gpu_bench.shapes import KERNELS, SHAPES, Shape
from tools.gpu_bench.supervise import Settings, WorkerError, supervise

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "tools" / "results" / "ops_gpu.jsonl"
OPS_README = ROOT / "ops" / "README.md"
PEERS = ROOT / ".gpu-peers"

Row = dict[str, Any]
_PROBE = "import torch, triton, sys; sys.exit(0 if torch.cuda.is_available() else 3)"


def chosen(only: str | None, patterns: Sequence[str]) -> list[Shape]:
    """Shapes of one kernel and of names that match a pattern, in their order."""
    return [
        shape
        for shape in SHAPES
        if only in (None, shape.kernel)
        and (not patterns or any(fnmatch(shape.name, p) for p in patterns))
    ]


def check_device() -> None:
    """Look for a device in a process of its own, so that this one holds none of it.

    Raises:
        BackendUnavailable: torch, triton or a device is missing.
    """
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True)
    if done.returncode == 3:
        raise BackendUnavailable(
            "no CUDA device was found", "run this on a machine with an H100 or H200"
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BackendUnavailable(
            f"torch or triton cannot be imported: {last}",
            "install torch with CUDA and triton 3.6.0 (glm5-ascend[nvidia])",
        )


def record(rows: Iterable[Row], source: Row, out: TextIO) -> tuple[list[Row], bool]:
    """Write each row at once and print each case; (all rows, whether Ctrl-C ended it)."""
    every: list[Row] = []
    shown, moment = 0, machine.now()

    def show() -> None:
        nonlocal shown
        if every[shown:]:
            print("\n" + "\n".join(report.lines(every[shown:])), flush=True)
        shown = len(every)

    try:
        for row in rows:
            if every and every[-1]["case"] != row["case"]:
                show()
                moment = machine.now()
            every.append(source | row | moment)
            out.write(json.dumps(every[-1]) + "\n")
            out.flush()
    except KeyboardInterrupt:
        show()
        return every, True
    show()
    return every, False


def last_run(file: Path) -> list[Row]:
    """Rows of the file's last run; empty without a file."""
    if not file.is_file():
        return []
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["date"] == rows[-1]["date"]]


def _block(*, check: bool) -> int:
    from tools.check_docs import with_block

    current = OPS_README.read_text(encoding="utf-8")
    wanted = with_block(current, "gpu", report.markdown(last_run(ROWS)))
    if not check:
        OPS_README.write_text(wanted, encoding="utf-8")
        return 0
    if current != wanted:
        print(f"ops/README.md does not show the last run of {ROWS.name}: run with --render",
              file=sys.stderr)  # fmt: skip
    return int(current != wanted)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools.bench_gpu", description=__doc__)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of everything [300]")
    parser.add_argument("--only", choices=KERNELS, help="shapes of one kernel [all]")
    parser.add_argument("--case", nargs="+", default=[], help="patterns, as attention-decode-*")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a race, at most [3]")
    parser.add_argument("--seed", type=int, help="of the inputs [the time]")
    parser.add_argument("--peers", type=Path, default=PEERS, help="folder of wheels [.gpu-peers]")
    parser.add_argument("--jit", action="store_true", help="let FlashInfer compile: minutes")
    parser.add_argument("--out", type=Path, default=ROWS, help="append rows there")
    parser.add_argument("--list", action="store_true", help="only print the shapes")
    parser.add_argument("--render", action="store_true", help="only fill ops/README.md")
    parser.add_argument("--check", action="store_true", help="only compare ops/README.md")
    return parser


def main(argv: Sequence[str]) -> int:
    """Command line entry."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.render or args.check:
        return _block(check=args.check)
    shapes = chosen(args.only, args.case)
    if not shapes:
        parser.error("no shape matches; --list prints them")
    if args.list:
        for shape in shapes:
            print(f"{shape.name:42} {shape.title}, floor {report.number(shape.cost.floor_us)} us")
        return ExitCode.DONE
    start = time.monotonic()
    try:
        check_device()
    except BackendUnavailable as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return ExitCode.PREFLIGHT
    kept = args.peers / "commit"
    commit = kept.read_text(encoding="utf-8") if kept.is_file() else ""
    source = machine.provenance(["python", "-m", "tools.bench_gpu", *argv], commit)
    seed = int(time.time()) if args.seed is None else args.seed
    settings = Settings(
        args.budget - (time.monotonic() - start), seed, str(args.peers.resolve()), args.seconds,
        jit=args.jit, patience=600.0 if args.jit else 60.0,
    )  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with args.out.open("a", encoding="utf-8") as out:
            rows, interrupted = record(supervise(shapes, settings), source, out)
    except WorkerError as error:
        print(f"error: {error}\nhint: its own output above says why", file=sys.stderr)
        return ExitCode.PREFLIGHT
    own = [row for row in rows if row["kind"] in ("project", "call")]
    bad = [row for row in own if row["status"] in ("wrong", "failed")]
    print(f"\n{len(rows)} rows in {time.monotonic() - start:.0f} s: {args.out}")
    for row in bad:
        print(f"{row['status']}: {row['case']}, {row['contestant']}: {row['reason']}")
    if interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.INPUT if bad else ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
