"""Rows of a run as text on the terminal and as the tables of README.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tools.bench import twins
from tools.bench.goals import verdicts
from tools.check_docs import with_block
from tools.results_table import last_run

Row = dict[str, Any]

_SHOWN = ("median", "p20", "p80", "least")
_COLUMNS = (("torch",), ("compiled",), ("vllm",))


def lines(rows: Sequence[Row]) -> list[str]:
    """One case for the terminal: every contestant, fastest first, and the limits beside them."""
    first = rows[0]
    out = [f"{first['case']}: {first['title']}"]
    heads = "".join(f"{name:>10}" for name in _SHOWN)
    out.append(f"  {'':40}{heads}{'n':>6}  {'GOP/s':>7}{'limit':>7}{'floor':>7}")
    for row in sorted(rows, key=lambda row: (row["kind"] == "limit", row["median"])):
        name = row["contestant"] + (f", {row['threads']} threads" if row["threads"] > 1 else "")
        times = "".join(f"{row[name]:10.1f}" for name in _SHOWN)
        out.append(f"  {name:40}{times}{row['n']:6}  {_figures(row)}".rstrip())
    return out


def _figures(row: Row) -> str:
    if row["kind"] == "limit":
        return f"{row['rate']:7.1f} {row['rate_unit']}"
    if row["kind"] in ("pass", twins.KIND):
        return ""
    rate = sum(row["flops"].values()) / row["median"] / 1e3
    text = f"{rate:7.1f}" if rate else f"{'':7}"
    if row["threads"] > 1 or not row["floor_us"]:
        return text
    share = row["arithmetic_us"] / row["median"]
    text += f"{100 * share:5.0f} %" if share else f"{'':7}"
    return f"{text}{row['median'] / row['floor_us']:6.2f}x"


def markdown(rows: Sequence[Row]) -> str:
    """The tables of one run, what to know before reading them, and where they come from."""
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    text = [_caveats(rows), "", *_times(cases), "", *_goals(rows), "", _origin(rows[0])]
    return "\n".join(text) + "\n"


def _caveats(rows: Sequence[Row]) -> str:
    other = max(row["other_cores"] for row in rows)
    stolen = max(row["stolen_cores"] for row in rows)
    load = max(row["load_average"] for row in rows)
    limits = ", ".join(_limits(rows))
    more = " Large tensors lie in 2 MiB pages, everybody's." if rows[0].get("large_pages") else ""
    if any("ceiling" in row for row in rows):
        more += (
            " What two threads can gain at most follows from the arithmetic and the bandwidth of"
            " both cores in the same turns"
        )
        if any(row["kind"] == twins.KIND for row in rows):
            more += "; of indexer and attention, from two calls at once on one thread each"
        more += "."
    return (
        "Medians in microseconds per call, 20 % and 80 % quantiles in brackets, on one thread"
        " unless the line says otherwise. All contestants of a line ran in turns in one process,"
        " each result checked first. Of torch and vLLM the best formulation stands here; torch's"
        " scores alone and vLLM's attention got their keys gathered beforehand, for nothing; vLLM's"
        " indexer is FP8 and chooses 512, and its mlapo is the matrix products alone. The limit is"
        " that of the processor's own instructions,"
        f" measured in the same turns ({limits}, medians over the cases); the distance to the floor"
        f" is time over max(operations / limit, bytes / bandwidth). A kernel is what the function"
        f" calls once it has checked its arguments.{more} Load average up to {load:.2f};"
        f" other processes used up to {other:.2f} cores, the host took up to {stolen:.2f}."
    )


def _limits(rows: Sequence[Row]) -> list[str]:
    found: dict[str, list[float]] = {}
    units = {}
    for row in rows:
        if row["kind"] == "limit" and row["threads"] == 1:
            found.setdefault(row["contestant"], []).append(row["rate"])
            units[row["contestant"]] = row["rate_unit"]
    return [f"{name} {median(rates):.0f} {units[name]}" for name, rates in found.items()]


def _times(cases: dict[str, list[Row]]) -> list[str]:
    out = [
        "| case | this project | torch eager | torch.compile | vLLM CPU | of limit | over floor |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, rows in cases.items():
        if name.startswith("threads-"):
            continue
        ours = _best(rows, ("project",))
        cells = [_cell(ours), *(_cell(_best(rows, kinds)) for kinds in _COLUMNS)]
        limit, floor = (ours or {}).get("arithmetic_us"), (ours or {}).get("floor_us")
        cells.append(f"{100 * limit / ours['median']:.0f} %" if ours and limit else "–")
        cells.append(f"{ours['median'] / floor:.2f}x" if ours and floor else "–")
        out.append(f"| `{name}`: {rows[0]['title']} | {' | '.join(cells)} |")
    return out


def _best(rows: Sequence[Row], kinds: Sequence[str]) -> Row | None:
    found = [row for row in rows if row["kind"] in kinds and row["threads"] == 1]
    return min(found, key=lambda row: row["median"], default=None)


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"{_number(row['median'])} [{_number(row['p20'])}, {_number(row['p80'])}]"


def _number(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 100 else f"{microseconds:,.0f}"


def _goals(rows: Sequence[Row]) -> list[str]:
    out = ["| goal | case | measured | |", "|---|---|---:|---|"]
    for verdict in verdicts(rows):
        out.append(f"| {verdict.goal} | `{verdict.case}` | {verdict.measured} | {verdict.by} |")
    return out


def _origin(row: Row) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    return (
        f"Measured on {row['hardware']} ({row['isa']}), {row['date'][:10]}, {versions}, commit"
        f" {row['commit'][:12]}{' with local changes' if row['dirty'] else ''}; every number is a"
        f" row of `tools/results/ops_cpu.jsonl`, made by `{row['command']}`."
    )


def rendered(text: str, table: str) -> str:
    """``text`` with the block of the operators replaced; ``SystemExit`` if it has none."""
    return with_block(text, "ops", table)


def check(readme: Path, file: Path) -> list[str]:
    """What does not belong together; empty when all is well."""
    if not file.is_file():
        return [f"{file.name} does not exist: run without options"]
    current = readme.read_text(encoding="utf-8")
    if rendered(current, markdown(last_run(file))) != current:
        return [f"{readme.name} does not show the last rows of {file.name}: run with --render"]
    return []
