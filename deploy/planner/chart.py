"""The trade between speed per user and throughput per die, in the terminal and as SVG in HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from glm5_ascend.deploy.planner.search import Point
from glm5_ascend.deploy.planner.targets import Targets

_WIDTH, _HEIGHT = 60, 14
_SVG_WIDTH, _SVG_HEIGHT, _MARGIN = 760, 460, 60
_GOOD, _OVER = "#1f6f8b", "#999"


def front(points: Sequence[Point]) -> list[Point]:
    """Points that no other beats in both output tokens/s per user and throughput, fast first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.tpot, -p.throughput)):
        if not best or point.throughput > best[-1].throughput:
            best.append(point)
    return best


def terminal(points: Sequence[Point], targets: Targets) -> str:
    """The front as text: ``*`` meets both limits, ``.`` does not."""
    chosen = front(points)
    if not chosen:
        return "no layout to draw"
    users = [1 / point.tpot for point in chosen]
    speeds = [point.throughput / targets.hardware.dies for point in chosen]
    right, top = max(users), max(speeds)
    grid = [[" "] * (_WIDTH + 1) for _ in range(_HEIGHT + 1)]
    for point, user, speed in zip(chosen, users, speeds, strict=True):
        row = _HEIGHT - round(speed / top * _HEIGHT)
        grid[row][round(user / right * _WIDTH)] = "*" if _meets(point, targets) else "."
    lines = ["output tokens/s per die (closed form, modelled)"]
    for number, row_cells in enumerate(grid):
        value = top * (_HEIGHT - number) / _HEIGHT
        lines.append(f"{value:>9.1f} |{''.join(row_cells).rstrip()}")
    lines.append(" " * 10 + "+" + "-" * _WIDTH)
    lines.append(f"{'0':>11}{f'{right:.0f} tokens/s per user':>{_WIDTH}}")
    return "\n".join(lines)


def html(points: Sequence[Point], targets: Targets, title: str) -> str:
    """A page with one SVG chart and no script; every point's layout is its tooltip."""
    best = front(points)
    within = front([point for point in points if _meets(point, targets)])
    chosen = set(map(id, best + within))
    users = [1 / point.tpot for point in points]
    speeds = [point.throughput / targets.hardware.dies for point in points]
    right, top = _rounded(max(users, default=1.0)), _rounded(max(speeds, default=1.0))

    def place(user: float, speed: float) -> tuple[float, float]:
        x = _MARGIN + user / right * (_SVG_WIDTH - 2 * _MARGIN)
        return x, _SVG_HEIGHT - _MARGIN - speed / top * (_SVG_HEIGHT - 2 * _MARGIN)

    marks = []
    # Large marks last, so that none is hidden by those that it beats.
    order = sorted(zip(points, users, speeds, strict=True), key=lambda item: id(item[0]) in chosen)
    for point, user, speed in order:
        x, y = place(user, speed)
        colour = _GOOD if _meets(point, targets) else _OVER
        size = 5 if id(point) in chosen else 2
        text = (
            f"{point.name}, {point.sequences} sequences per rank: {speed:.1f} tokens/s per die,"
            f" TPOT {1e3 * point.tpot:.1f} ms, TTFT {1e3 * point.ttft:.0f} ms"
        )
        marks.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}">'
            f"<title>{escape(text)}</title></circle>"
        )
    for curve, colour in ((best, _OVER), (within, _GOOD)):
        line = " ".join(
            "{:.1f},{:.1f}".format(*place(1 / p.tpot, p.throughput / targets.hardware.dies))
            for p in curve
        )
        marks.insert(0, f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
    if 1 / targets.tpot < right:
        x, _ = place(1 / targets.tpot, 0)
        marks.append(
            f'<path d="M{x:.1f} {_MARGIN}V{_SVG_HEIGHT - _MARGIN}" stroke="#b5651d"'
            f' stroke-dasharray="4"/><text x="{x + 4:.1f}" y="{_MARGIN + 12}" fill="#b5651d">'
            f"TPOT {1e3 * targets.tpot:g} ms</text>"
        )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<body style="font:14px sans-serif"><h1 style="font-size:18px">{escape(title)}</h1>'
        f"<p>{targets.prompt:,} tokens in, {targets.output:,} out. Modelled in closed form, not"
        " measured. Lines and large points: the best trades, of all and within the limits."
        f' <span style="color:{_GOOD}">&#9679;</span> within TPOT {1e3 * targets.tpot:g} ms and'
        f" TTFT {1e3 * targets.ttft:g} ms,"
        f' <span style="color:{_OVER}">&#9679;</span> above a limit.</p>'
        f'<svg viewBox="0 0 {_SVG_WIDTH} {_SVG_HEIGHT}" width="{_SVG_WIDTH}" role="img"'
        f' font-size="12">{_axes(right, top)}{"".join(marks)}</svg></body></html>\n'
    )


def _rounded(value: float) -> float:
    """The next number with one digit, or with two below 2, so that ticks are round."""
    scale = 10.0 ** math.floor(math.log10(value))
    return next(step * scale for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * scale >= value)


def _axes(right: float, top: float) -> str:
    """Both axes with five ticks each and their names."""
    low, left = _SVG_HEIGHT - _MARGIN, _MARGIN
    wide, high = _SVG_WIDTH - 2 * _MARGIN, _SVG_HEIGHT - 2 * _MARGIN
    found = [f'<path d="M{left} {_MARGIN}V{low}H{left + wide}" fill="none" stroke="#333"/>']
    for part in range(6):
        x, y = left + wide * part / 5, low - high * part / 5
        found.append(
            f'<path d="M{left} {y:.1f}H{left + wide}M{x:.1f} {low}v5" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{low + 20}" text-anchor="middle">{right * part / 5:g}</text>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{top * part / 5:g}</text>'
        )
    found.append(
        f'<text x="{left + wide / 2}" y="{low + 42}" text-anchor="middle">output tokens/s per user'
        f'</text><text x="{left}" y="{_MARGIN - 20}">output tokens/s per die</text>'
    )
    return "".join(found)


def _meets(point: Point, targets: Targets) -> bool:
    return point.tpot <= targets.tpot and point.ttft <= targets.ttft
