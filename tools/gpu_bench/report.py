"""Rows of a GPU run as one table, its goals, and the block of ops/README.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tools.gpu_bench.shapes import SHAPES

Row = dict[str, Any]

_OURS, _PEERS = ("project",), ("peer",)


class Spent(NamedTuple):
    """Microseconds of one call; ``how`` is empty where the caches were cold and a graph ran."""

    us: float
    how: str

    def __str__(self) -> str:
        return f"{number(self.us)}{self.how}"


def spent(row: Row) -> Spent:
    """The time of a row that was timed; outside of a graph that of its kernels, if known."""
    if row["mode"] != "stream":
        return Spent(row["median"], "")
    if row.get("kernels_us"):
        return Spent(row["kernels_us"], " (kernels alone)")
    return Spent(row["median"], " (with launches)")


def number(value: float) -> str:
    """Three digits or more."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def best(rows: Iterable[Row], kinds: Sequence[str]) -> Row | None:
    """The fastest of these kinds that was timed."""
    timed = [row for row in rows if row["kind"] in kinds and row["status"] == "timed"]
    return min(timed, key=lambda row: spent(row).us, default=None)


def by_case(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of each case, cases in the order of their first row."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["case"], []).append(row)
    return found


def verdict(rows: Sequence[Row]) -> str:
    """Whether the rows of one case reach its goal, and by how much; empty without a goal."""
    goal = rows[0]["goal"]
    if goal is None:
        return ""
    over = goal["over"]
    ours, peer = best(rows, _OURS), best(rows, _PEERS)
    wanted = f"≤ {goal['most']:.2f}x {'the best peer' if over == 'peer' else 'the floor'}"
    if ours is None:
        return f"{wanted}: not measured, the project was not timed"
    if over == "peer" and peer is None:
        return f"{wanted}: not measured, no peer was timed"
    base = rows[0]["floor_us"] if over == "floor" else spent(peer).us if peer else 0.0
    ratio = spent(ours).us / base
    margin = ratio / goal["most"] - 1
    reached = "reached" if margin <= 0 else f"MISSED by {100 * margin:.0f} %"
    return f"{wanted}: {ratio:.2f}x, {reached}"


def lines(rows: Sequence[Row]) -> list[str]:
    """One case for the terminal."""
    out = [f"{rows[0]['case']}: {rows[0]['title']}, floor {number(rows[0]['floor_us'])} us"]
    peer = best(rows, _PEERS)
    for row in sorted(rows, key=lambda row: row.get("median", float("inf"))):
        name = f"  {row['contestant']:32}"
        if row["status"] != "timed":
            out.append(f"{name}{row['status']}: {row['reason'][:200]}")
            continue
        ratio = f"{spent(row).us / spent(peer).us:5.2f}x peer" if peer else f"{'':11}"
        over = f"{spent(row).us / row['floor_us']:6.2f}x floor"
        times = f"{row['median']:9.2f} [{row['p20']:.2f}, {row['p80']:.2f}] us"
        out.append(f"{name}{times} {ratio} {over}  {row['mode']}{_kernels(row)}")
    if text := verdict(rows):
        out.append(f"  goal {text}")
    return out


def _kernels(row: Row) -> str:
    value = row.get("kernels_us")
    return f", kernels alone {number(value)} us" if value else ""


def markdown(rows: Sequence[Row]) -> str:
    """The block of ops/README.md; without rows it says that nothing was measured."""
    if not rows:
        return _unmeasured()
    table = [
        "| case | numbers | this project | best peer | torch | ratio to peer | over floor | goal |",
        "|---|---|---:|---:|---:|---:|---:|---|",
        *map(_line, by_case(rows).values()),
    ]
    notes = [_note(row) for row in rows if row["status"] != "timed"]
    excused = ["", "Not timed:", "", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join([_origin(rows), "", *table, *excused]) + "\n"


def _unmeasured() -> str:
    text = (
        "Not yet measured: no run of `python -m tools.bench_gpu` has been recorded. The goals are"
        " ratios to the best peer of the same run, or to the floor above.\n"
    )
    table = ["| case | floor µs | goal | measured |", "|---|---:|---|---|"]
    for shape in SHAPES:
        if shape.goal:
            over = "best peer" if shape.goal.over == "peer" else "floor"
            goal = f"≤ {shape.goal.most:.2f}x {over}"
            floor = number(shape.cost.floor_us)
            table.append(f"| `{shape.name}` | {floor} | {goal} | not yet measured |")
    return "\n".join([text, *table]) + "\n"


def _line(rows: Sequence[Row]) -> str:
    ours, peer, torch = best(rows, _OURS), best(rows, _PEERS), best(rows, ("torch",))
    ratio = f"{spent(ours).us / spent(peer).us:.2f}x" if ours and peer else "–"
    floor = f"{spent(ours).us / ours['floor_us']:.2f}x" if ours else "–"
    cells = [
        f"`{rows[0]['case']}`", rows[0]["case_dtype"], _cell(ours), _cell(peer, named=True),
        _cell(torch), ratio, floor, verdict(rows) or "–",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _cell(row: Row | None, *, named: bool = False) -> str:
    if row is None:
        return "–"
    heads = row["heads_computed"]
    padded = heads > row["shape"]["heads"] and row["kernel"] == "attention"
    name = f" {row['contestant']}{f' ({heads} heads)' if padded else ''}" if named else ""
    return f"{spent(row)}{name}"


def _note(row: Row) -> str:
    return f"`{row['case']}`, {row['contestant']}: {row['status']}, {row['reason']}"


def _origin(rows: Sequence[Row]) -> str:
    first, device = rows[0], rows[0].get("device") or {}
    card = ", ".join(f"{name} {value}" for name, value in first["card"].items())
    used = {
        f"{n} {v}" for row in rows for n, v in row.get("device", {}).get("versions", {}).items()
    }
    used |= {row["package"] for row in rows if row.get("package") and row["kind"] == "peer"}
    dirty = " with local changes" if first["dirty"] else ""
    return (
        "Medians in microseconds per call on fresh inputs, each result compared with F64 first;"
        " all contestants of a line ran in turns, in CUDA graphs unless a cell says otherwise, with"
        " an L2 that holds none of their data. Measured on"
        f" {device.get('gpu', 'unknown')} ({card}), {first['date'][:10]},"
        f" {', '.join(sorted(used))}, commit {first['commit'][:12]}{dirty};"
        f" every number is a row of `tools/results/ops_gpu.jsonl`, made by `{first['command']}`."
    )
