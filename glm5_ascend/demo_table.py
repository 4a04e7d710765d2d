"""The demo's result as a table for people and as one JSON document."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5_ascend.console import format_bytes
from glm5_ascend.demo_http import Speed

if TYPE_CHECKING:
    from rich.console import Console

FILES, OFFLINE, ENGINE = "files", "offline", "engine"
SOURCES = {
    FILES: "size of the safetensors files",
    OFFLINE: "measured: this project's forward pass, float parts in F32, activations quantised "
    "per token",
    ENGINE: "measured: vLLM serving on this CPU, greedy, one request at a time",
}
BAR_WIDTH = 40
CAVEAT = (
    "This is a CPU emulation: the arithmetic of each scheme is done on this machine. Nothing ran "
    "on an NPU, and tokens/s says nothing about Ascend."
)


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: ``accuracy`` by metric name (see ``simulator.evaluate.Metrics``), ``speed`` None
    where the engine was not started for it."""

    name: str
    title: str
    checkpoint_bytes: int
    accuracy: Mapping[str, float]
    speed: Speed | None


@dataclass(frozen=True, slots=True)
class Line:
    """A metric: title, JSON key, how to show it, where it comes from."""

    title: str
    key: str
    show: Callable[[float], str]
    source: str


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _plain(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}"


LINES: tuple[Line, ...] = (
    Line("weights", "checkpoint_bytes", format_bytes, FILES),
    Line("bits per byte", "bits_per_byte", _plain(4), OFFLINE),
    Line("bits per byte, change", "bits_change", lambda v: f"{100 * v:+.2f} %", OFFLINE),
    Line("KL, nats per token", "kl_mean", _plain(5), OFFLINE),
    Line("KL, 99th percentile", "kl_p99", _plain(4), OFFLINE),
    Line("top-1 agreement", "top1_agreement", _percent, OFFLINE),
    Line("top-k index recall", "topk_recall", _percent, OFFLINE),
    Line("expert agreement", "expert_agreement", _percent, OFFLINE),
    Line("MTP accepted, text", "mtp_acceptance", _percent, OFFLINE),
    Line("MTP accepted, served", "engine_mtp_acceptance", _percent, ENGINE),
    Line("tokens/s", "tokens_per_s", _plain(1), ENGINE),
)


def values(row: Row) -> dict[str, float | int | None]:
    """Every number of a row by JSON key; None where it was not measured."""
    speed = row.speed
    result: dict[str, float | int | None] = {"checkpoint_bytes": row.checkpoint_bytes}
    result |= {k: None if math.isnan(v) else v for k, v in row.accuracy.items()}
    result["tokens_per_s"] = speed.tokens_per_s if speed else None
    result["engine_mtp_acceptance"] = speed.acceptance if speed else None
    result["engine_output_tokens"] = speed.output_tokens if speed else None
    result["engine_mtp_drafted"] = speed.drafted if speed else None
    return result


def document(rows: Sequence[Row], **context: object) -> dict[str, object]:
    """The JSON document: context, source of every number, and one object per variant."""
    return {
        "schema": 1,
        "source": "measured",
        "hardware": "CPU emulation, no NPU",
        **context,
        "measured_by": {line.key: SOURCES[line.source] for line in LINES},
        "variants": [{"name": row.name, **values(row)} for row in rows],
    }


def show(console: Console, rows: Sequence[Row], caption: str) -> None:
    """Print the table, what its words mean, the bars and the caveat."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("compared with BF16", no_wrap=True)
    for row in rows:
        table.add_column(row.title, justify="right", no_wrap=True)
    table.add_column("by", style="dim", no_wrap=True)
    numbers = [values(row) for row in rows]
    for line in LINES:
        cells = [_cell(line, number[line.key]) for number in numbers]
        table.add_row(line.title, *cells, line.source)
    console.print(table)
    for text in (caption, *(f"{name}: {meaning}" for name, meaning in SOURCES.items()), ""):
        console.print(text, highlight=False, markup=False)
    for text in (*bars(rows), "", CAVEAT):
        console.print(text, highlight=False, markup=False)


def _cell(line: Line, value: float | None) -> str:
    return "–" if value is None else line.show(value)


def bars(rows: Sequence[Row]) -> list[str]:
    """A small picture: KL to BF16 of every variant as bars of one scale."""
    longest = max(row.accuracy["kl_mean"] for row in rows)
    width = max(len(row.title.replace("\n", " ")) for row in rows)
    lines = ["KL to BF16 (shorter is better)"]
    for row in rows:
        value = row.accuracy["kl_mean"]
        eighths = round(8 * BAR_WIDTH * value / longest) if longest > 0 else 0
        bar = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
        lines.append(f"  {row.title.replace(chr(10), ' '):<{width}}  {bar} {value:.5f}")
    return lines
