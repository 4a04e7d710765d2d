"""Rows of a run as lines and as the tables of README.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glm5_ascend.inspection import PARTS
from tools.check_docs import with_block
from tools.quant_bench.extrapolate import total
from tools.results_table import last_run

Row = dict[str, Any]

_SCHEMES = {"W4A8_DYNAMIC": "int4", "W8A8_DYNAMIC": "int8", "FLOAT": "float"}
_SOURCES = {"BF16": "BF16", "F8_E4M3": "FP8"}


def line(row: Row) -> str:
    """One case on the terminal."""
    torch = f", torch {row['torch_ns']:.1f}" if "torch_ns" in row else ""
    return (
        f"{row['case']} {row['shape']} {_SOURCES[row['source_dtype']]} to"
        f" {_SCHEMES[row['scheme']]}, {row['turned']} rotated: {row['ns']:.2f} ns per weight"
        f" [{row['p20']:.2f}, {row['p80']:.2f}], wall {row['wall_ns']:.2f}{torch}"
    )


def markdown(rows: Sequence[Row]) -> str:
    """The tables of one run and where they come from."""
    limits = next(row for row in rows if row["kind"] == "limits")
    text = [*_cases(rows, limits["copy"]), "", *_releases(rows), "", _origin(rows, limits)]
    return "\n".join(text) + "\n"


def _cases(rows: Sequence[Row], copy: float) -> list[str]:
    out = [
        "| matrix | source | stored | rotated | ns per weight | GB/s | over floor | torch path |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        if row["kind"] != "case":
            continue
        floor = row["bytes"] / copy * 1e9
        torch = "–"
        if "torch_ns" in row:
            torch = f"{row['torch_ns']:.0f} ns, {row['torch_ns'] / row['ns']:.0f}x"
        out.append(
            f"| `{row['case']}` {row['shape']} | {_SOURCES[row['source_dtype']]} |"
            f" {_SCHEMES[row['scheme']]} | {row['turned']} | {row['ns']:.2f}"
            f" [{row['p20']:.2f}, {row['p80']:.2f}] | {row['bytes'] / row['ns']:.2f} |"
            f" {row['ns'] / floor:.1f}x | {torch} |"
        )
    return out


def _releases(rows: Sequence[Row]) -> list[str]:
    found = [row for row in rows if row["kind"] == "release"]
    out = [
        f"| core-hours, modelled | {' | '.join(row['release'] for row in found)} |",
        "|---" + "|---:" * len(found) + "|",
    ]
    for part, label in PARTS.items():
        if any(part in row["parts"] for row in found):
            cells = " | ".join(f"{row['parts'].get(part, 0):.2f}" for row in found)
            out.append(f"| {label} | {cells} |")
    for key, label in (
        ("hash_hours", "SHA-256, three times"),
        ("write_hours", "writing"),
        ("read_back_hours", "reading back"),
    ):
        out.append(f"| {label} | {' | '.join(f'{row[key]:.2f}' for row in found)} |")
    out.append(f"| **all** | {' | '.join(f'**{total(row):.2f}**' for row in found)} |")
    floors = " | ".join(f"{row['floor_hours']:.2f}" for row in found)
    out.append(f"| floor: source and output at the bandwidth of copying | {floors} |")
    peer = " | ".join("about 300" for _ in found)
    out.append(f"| msModelSlim 26.1 on a CPU, calculated | {peer} |")
    return out


def _origin(rows: Sequence[Row], limits: Row) -> str:
    first = rows[0]
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    return (
        "Processor time of one core, from files that are not in the cache, three different ones in"
        " turn; reading them is included, waiting for a disk is not. Medians, 20 % and 80 %"
        f" quantiles in brackets. Copying memory {limits['copy'] / 1e9:.1f} GB/s (read and"
        f" written), SHA-256 {limits['hash'] / 1e9:.2f} GB/s, writing a file"
        f" {limits['write'] / 1e9:.2f} GB/s."
        " A matrix of which a release has few has the time of its BF16 twin in the FP8 column."
        " msModelSlim: rotation 27 and scales 275 core-hours, calculated from its times for single"
        " matrices on a CPU of two cores, without reading and writing."
        f" Other processes used {first['other_cores']:.2f} cores meanwhile. {first['hardware']}"
        f" ({first['isa']}), {first['date'][:10]}, {versions}, commit {first['commit'][:12]}"
        f"{' with local changes' if first['dirty'] else ''}; every number is a row of"
        f" `tools/results/quant_cpu.jsonl`, made by `{first['command']}`."
    )


def rendered(text: str, table: str) -> str:
    """``text`` with the block replaced; ``SystemExit`` if it has none."""
    return with_block(text, "quant-speed", table)


def check(readme: Path, file: Path) -> list[str]:
    """What does not belong together; empty when all is well."""
    if not file.is_file():
        return [f"{file.name} does not exist: run without options"]
    current = readme.read_text(encoding="utf-8")
    if rendered(current, markdown(last_run(file))) != current:
        return [f"{readme.name} does not show the last rows of {file.name}: run with --render"]
    return []
