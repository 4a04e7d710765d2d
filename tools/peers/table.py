"""The tables of quantisers in ``quant/RESULTS.md``, from the recorded rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.check_docs import with_block
from tools.results_table import sha256

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "quant" / "RESULTS.md"
ROWS = ROOT / "tools" / "results" / "quantisers.jsonl"
# Pieces of calibration text of about 1500 characters, unless a run says otherwise.
SAMPLES = 16

Row = Mapping[str, Any]


def last_runs(file: Path, model: str) -> list[list[dict[str, Any]]]:
    """Rows of the last run of each kind: ``model`` by pieces of text, then other models."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    last: dict[tuple[bool, str, int], str] = {}
    for row in rows:
        last[_kind(row, model)] = row["date"]
    return [
        [row for row in rows if _kind(row, model) == kind and row["date"] == last[kind]]
        for kind in sorted(last)
    ]


def _kind(row: Row, model: str) -> tuple[bool, str, int]:
    return row["model"] != model, row["model"], row.get("samples", SAMPLES)


def tables(runs: Sequence[Sequence[Row]]) -> str:
    """The first run's tables, and those of the others under headings."""
    first, *others = runs
    parts = [markdown(first)]
    for rows in others:
        model, samples = rows[0]["model"], rows[0].get("samples", SAMPLES)
        of = "" if model == first[0]["model"] else f" of {model}, 78 random layers"
        parts.append(f"### Calibrated on {samples} pieces of text{of}\n\n{markdown(rows)}")
    return "\n".join(parts)


def markdown(rows: Sequence[Row]) -> str:
    """Two tables, contestants and goals, and the sentence that says where they come from."""
    lines = ["| quantiser | scheme | KL, nats per token | 99th percentile | top-1 | processor |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    lines += [_contestant(row) for row in rows if row["kind"] == "contestant"]
    lines += ["", "| ours over | scheme | KL ratio | goal | |", "|---|---|---:|---:|---|"]
    lines += [_goal(row) for row in rows if row["kind"] == "goal"]
    row = next(row for row in rows if "metrics" in row)
    text = row["text"]
    lines += [
        "",
        f"Mean KL to BF16 on {text['tokens']:,} tokens of {text['name']} (in {text['windows']}"
        " windows; 95 % bootstrap intervals over them, paired for ratios), weights and activations"
        " quantised as the NPU does, the same scheme for every matrix of the main model. Variants"
        " of a peer 10 % behind its best, or equal to another, stand on a tenth. Measured:"
        f" {row['hardware']}, CPU emulation, no NPU; {row['date'][:10]}, commit"
        f" {row['commit'][:12]}{' with local changes' if row['dirty'] else ''}; rows of"
        f" `{ROWS.relative_to(ROOT)}`, made by `{row['command']}`. Peers run unchanged but for the"
        " patches that `tools/peers/README.md` lists.",
    ]
    return "\n".join(lines) + "\n"


def rendered(text: str, table: str) -> str:
    """``text`` with the block of quantisers replaced."""
    return with_block(text, "quantisers", table)


def problems(readme: Path, file: Path, model: Path) -> list[str]:
    """What does not belong together; empty when all is well."""
    if not file.is_file():
        return [f"{file.name} does not exist: run without options"]
    runs = last_runs(file, model.name)
    found = []
    current = readme.read_text(encoding="utf-8")
    if rendered(current, tables(runs)) != current:
        found.append(f"{readme.name} does not show the last rows: run with --render")
    own = [row for rows in runs for row in rows if row["model"] == model.name]
    if any(row["model_sha256"] != sha256(model / "model.safetensors") for row in own):
        found.append(f"{file.name} was measured with another model: run again")
    return found


def _contestant(row: Row) -> str:
    title = f"{row['tool']} {row.get('version', '')}".strip() + f", {row['variant']}"
    if "skipped" in row:
        return f"| {title} | {row['scheme']} | skipped: {row['skipped']} | – | – | – |"
    seconds = f"{row['cost']['cpu_s']:.0f} s |"
    if "metrics" not in row:
        few = row["screened"]
        shown = f"{few['kl_mean']:.5f} on {few['tokens']:,} tokens"
        return f"| {title} | {row['scheme']} | {shown} | – | – | {seconds}"
    kl, tail = row["metrics"]["kl_mean"], row["metrics"]["kl_p99"]
    low, high = kl["interval"]
    top1 = 100 * row["metrics"]["top1_agreement"]["value"]
    return (
        f"| {title} | {row['scheme']} | {kl['value']:.5f} [{low:.5f}, {high:.5f}] |"
        f" {tail['value']:.4f} | {top1:.1f} % | {seconds}"
    )


def _goal(row: Row) -> str:
    head = f"| {row['tool']} | {row['scheme']} |"
    if "missing" in row:
        return f"{head} – | ≤ {row['goal']:.2f} | NOT SHOWN: no result of {row['missing']} |"
    low, high = row["interval"]
    verdict = "reached" if row["reached"] else "MISSED"
    if not row["same_schemes"]:
        verdict = "NOT SHOWN: other schemes"
    return (
        f"{head} {row['ratio']:.3f} [{low:.3f}, {high:.3f}] | ≤ {row['goal']:.2f} | {verdict}"
        f" ({row['ours']} over {row['peer']}) |"
    )
