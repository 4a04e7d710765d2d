"""Rows of ``tools.time_decode_ops`` and their table in ops/SPEED.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.check_docs import with_block
from tools.results_table import OPS_SPEED as README
from tools.results_table import ROOT, last_run, provenance

ROWS = ROOT / "tools" / "results" / "decode_ops.jsonl"

Row = dict[str, Any]


def record(command: Sequence[str], rows: Sequence[Row], file: Path = ROWS) -> None:
    """Append rows that ``command`` measured and show them in ops/SPEED.md."""
    source = provenance(command)
    with file.open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(source | row) + "\n" for row in rows)
    text = README.read_text(encoding="utf-8")
    README.write_text(with_block(text, "decode", markdown(last_run(file))), encoding="utf-8")


def markdown(rows: Sequence[Row]) -> str:
    """The table of one run; shares and gains are relative to its first row."""
    first = rows[0]
    lines = [
        "| backend | operators per decode step | share | tokens/s | gain | tokens |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        share = row["operators_us"] / first["operators_us"]
        gain = row["tokens_per_second"] / first["tokens_per_second"]
        lines.append(
            f"| {row['backend']} | {row['operators_us'] / 1e3:.2f} ms | {share:.3f} | "
            f"{row['tokens_per_second']:.1f} | {gain:.2f}x | {row['same'].partition(': ')[2]} |"
        )
    llama = first["llama_cpp"]
    lines.append(
        f"| llama.cpp | – | – | {llama:.1f} | – | – |"
        if isinstance(llama, float)
        else f"| llama.cpp | – | – | not measured: {llama} | – | – |"
    )
    clock = "" if first["clock"] == "wall" else ", processor time of the engine's thread"
    versions = ", ".join(f"{name} {text}" for name, text in first["versions"].items())
    lines += [
        "",
        f"The small model as {first['checkpoint']} inside vLLM, {first['dtype']}, "
        f"{first['context']} tokens in the cache, one request, one thread, the backends in turns in"
        f" one process; medians of {first['steps']} steps{clock}; tokens/s from one token to the"
        f" next. Measured on {first['hardware']}, {first['date'][:10]}, {versions},"
        f" commit {first['commit'][:12]}"
        f"{' with local changes' if first['dirty'] else ''}; every number is a row of"
        f" `tools/results/{ROWS.name}`, made by `{first['command']}`.",
    ]
    return "\n".join(lines) + "\n"
