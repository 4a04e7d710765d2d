"""The trade between speed per user and throughput per die, in the terminal and as SVG in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from glm5_ascend.deploy.planner.search import Point
from glm5_ascend.deploy.planner.targets import Targets

_WIDTH, _HEIGHT = 60, 14
_SVG_WIDTH, _SVG_HEIGHT, _MARGIN = 760, 460, 60


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
    chosen = set(map(id, front(points)))
    users = [1 / point.tpot for point in points]
    speeds = [point.throughput / targets.hardware.dies for point in points]
    right, top = max(users, default=1.0), max(speeds, default=1.0)
    marks = []
    for point, user, speed in zip(points, users, speeds, strict=True):
        x = _MARGIN + user / right * (_SVG_WIDTH - 2 * _MARGIN)
        y = _SVG_HEIGHT - _MARGIN - speed / top * (_SVG_HEIGHT - 2 * _MARGIN)
        colour = "#1f6f8b" if _meets(point, targets) else "#999"
        size = 5 if id(point) in chosen else 2
        text = (
            f"{point.name}, {point.sequences} sequences per rank: {speed:.1f} tokens/s per die,"
            f" TPOT {1e3 * point.tpot:.1f} ms, TTFT {1e3 * point.ttft:.0f} ms"
        )
        marks.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}">'
            f"<title>{escape(text)}</title></circle>"
        )
    low, left = _SVG_HEIGHT - _MARGIN, _MARGIN
    axes = (
        f'<path d="M{left} {_MARGIN}V{low}H{_SVG_WIDTH - _MARGIN}" fill="none" stroke="#333"/>'
        f'<text x="{_SVG_WIDTH - _MARGIN}" y="{low + 35}" text-anchor="end">'
        f"tokens/s per user, 0 to {right:.0f}</text>"
        f'<text x="{left}" y="{_MARGIN - 20}">output tokens/s per die, 0 to {top:.1f}</text>'
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<body style="font:14px sans-serif"><h1 style="font-size:18px">{escape(title)}</h1>'
        "<p>Modelled, not measured. Large points: best trade; grey: above a limit.</p>"
        f'<svg viewBox="0 0 {_SVG_WIDTH} {_SVG_HEIGHT}" width="{_SVG_WIDTH}" role="img">'
        f"{axes}{''.join(marks)}</svg></body></html>\n"
    )


def _meets(point: Point, targets: Targets) -> bool:
    return point.tpot <= targets.tpot and point.ttft <= targets.ttft
