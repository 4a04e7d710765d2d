"""Model the kernels' times at the shapes of their goals, and put published numbers beside them.

``python -m tools.cost_table`` emulates every shape, appends rows to ``tools/results/cost.jsonl``
and fills ops/SPEED.md between ``<!-- generated: cost -->`` and ``<!-- end -->``. ``--only OP`` runs
and prints the quick shapes of one operator (``--all`` its other ones too) and records nothing.
``--render`` only fills ops/SPEED.md, ``--check`` fails where it shows other rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glm5_ascend.errors import Glm5Error
from glm5_ascend.ops.emulator.cost_case import OPERATORS
from glm5_ascend.ops.emulator.cost_command import cost
from tools.check_docs import with_block
from tools.cost import report
from tools.cost.cases import CHIP, ENTRIES, PUBLISHED, Entry, ours
from tools.results_table import OPS_SPEED as README
from tools.results_table import ROOT, last_run, provenance

ROWS = ROOT / "tools" / "results" / "cost.jsonl"
Row = dict[str, Any]


def modelled(entry: Entry, limit: float) -> Row:
    """The row of a shape."""
    found = cost(entry.operator, entry.shape, CHIP, None, limit).as_dict()
    return {"case": entry.name, **found}


def run(entries: Sequence[Entry], limit: float) -> list[Row]:
    """Emulate, print and return the rows."""
    rows = []
    for entry in entries:
        row = modelled(entry, limit)
        print(report.line(row), flush=True)
        rows.append(row)
    known = {row["case"]: row for row in rows}
    for each in PUBLISHED:
        value = ours(each, known)
        if value is not None:
            print(f"published {each.number} ({each.what}): {value:.1f} {each.unit}")
    return rows


def check(readme: Path, file: Path) -> list[str]:
    """What does not belong together; empty when all is well."""
    if not file.is_file():
        return [f"{file.name} does not exist: run without options"]
    current = readme.read_text(encoding="utf-8")
    if with_block(current, "cost", report.markdown(last_run(file))) != current:
        return [f"{readme.name} does not show the last rows of {file.name}: run with --render"]
    return []


def main(argv: Sequence[str]) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="tools.cost_table", description=__doc__)
    parser.add_argument("--only", choices=OPERATORS, help="one operator's quick shapes")
    parser.add_argument("--all", action="store_true", help="with --only: all of its shapes")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of emulation per shape")
    parser.add_argument("--render", action="store_true", help="only fill ops/SPEED.md")
    parser.add_argument("--check", action="store_true", help="only compare ops/SPEED.md")
    args = parser.parse_args(argv)
    if args.check:
        problems = check(README, ROWS)
        print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
        return int(bool(problems))
    if not args.render:
        chosen = [
            entry
            for entry in ENTRIES
            if args.only in (None, entry.operator) and (not args.only or args.all or entry.quick)
        ]
        origin = provenance(["python", "-m", "tools.cost_table", *argv])
        try:
            rows = run(chosen, args.limit)
        except Glm5Error as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if args.only:
            return 0
        ROWS.parent.mkdir(exist_ok=True)
        with ROWS.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(origin | row) + "\n" for row in rows)
    elif not ROWS.is_file():
        parser.error(f"{ROWS.name} does not exist: run without options")
    text = README.read_text(encoding="utf-8")
    table = report.markdown(last_run(ROWS))
    README.write_text(with_block(text, "cost", table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
