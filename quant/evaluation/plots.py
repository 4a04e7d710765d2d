"""Plots as inline SVG: no script, no network, colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 860, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 26, 34
# Levels of a heat map, CSS classes h0 … h8.
LEVELS = 9
# What lies further below the largest value of a logarithmic heat map has the lightest colour.
_DECADES = 1e-5

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to pixels, linearly or by their logarithm."""

    low: float
    high: float
    start: float
    stop: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (self._of(v) for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)

    def _of(self, value: float) -> float:
        return math.log10(value) if self.is_log else value

    def ticks(self) -> list[float]:
        """A few round values within the range."""
        if self.is_log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            units = (1, 2, 5) if last - first < 4 else (1,)
            step = max(1, (last - first) // 6)
            found = [unit * 10.0**power for power in range(first, last, step) for unit in units]
            return [tick for tick in found if self.low <= tick <= self.high] or [self.low]
        if self.high <= self.low:
            return [self.low]
        raw = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        width = next(power * unit for unit in (1, 2, 5, 10) if power * unit >= raw)
        start = math.ceil(self.low / width)
        return [k * width for k in range(start, math.floor(self.high / width + 1e-9) + 1)]


def lines(
    title: str, series: Mapping[str, Sequence[Point]], *, x: str, y: str, is_log: bool = False
) -> str:
    """One line per series over a common axis; values that a logarithm lacks are left out.

    Args:
        title: of the plot, for readers of screens too.
        series: points (x, y) by name.
        x, y: what the axes show.
        is_log: logarithmic y axis.
    """
    kept = {
        name: [p for p in points if math.isfinite(p[1]) and (p[1] > 0 or not is_log)]
        for name, points in series.items()
    }
    points = [point for part in kept.values() for point in part]
    if not points:
        return f"<p>{escape(title)}: nothing to show.</p>"
    across = Axis(min(p[0] for p in points), max(p[0] for p in points), _LEFT, _WIDTH - _RIGHT)
    values = [p[1] for p in points]
    low, high = min(values), max(values)
    if not is_log:
        room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        low, high = low - room, high + room
    up = Axis(low, high, _HEIGHT - _BOTTOM, _TOP, is_log)
    body = [_grid(across, up, x, y)]
    for number, (name, part) in enumerate(kept.items()):
        path = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in part)
        body.append(f'<polyline class="s{number}" points="{path}"/>')
        body += [
            f'<circle class="s{number}" cx="{across(a):.1f}" cy="{up(b):.1f}" r="3">'
            f"<title>{escape(name)}, {x} {a:g}: {b:.4g}</title></circle>"
            for a, b in part
        ]
    return _figure(title, _WIDTH, _HEIGHT, body, legend=list(kept))


def heat_map(title: str, rows: Mapping[str, Mapping[int, float]], *, is_log: bool, x: str) -> str:
    """A cell per row and column; darker is more. Each cell says its value when pointed at."""
    values = [v for row in rows.values() for v in row.values() if v > 0 or not is_log]
    if not values:
        return f"<p>{escape(title)}: nothing to show.</p>"
    columns = sorted({column for row in rows.values() for column in row})
    low = max(min(values), max(values) * _DECADES) if is_log else min(values)
    scale = Axis(low, max(values), 0, LEVELS - 1e-6, is_log)
    left, cell = 230, max(4.0, min(26.0, (_WIDTH - 230 - _RIGHT) / len(columns)))
    body = []
    for number, (name, row) in enumerate(rows.items()):
        y = _TOP + 18 * number
        body.append(f'<text class="end" x="{left - 6}" y="{y + 12}">{escape(name)}</text>')
        for column, value in row.items():
            level = int(scale(max(value, low)))
            at = left + cell * columns.index(column)
            body.append(
                f'<rect class="h{level}" x="{at:.1f}" y="{y}" width="{cell - 0.6:.1f}" height="17">'
                f"<title>{escape(name)}, {x} {column}: {value:.3g}</title></rect>"
            )
    foot = _TOP + 18 * len(rows) + 16
    step = max(1, math.ceil(24 / cell))
    for column in columns[::step]:
        at = left + cell * (columns.index(column) + 0.5)
        body.append(f'<text class="mid" x="{at:.1f}" y="{foot}">{column}</text>')
    ends = (
        f"lightest {low:.2g}{' and less' if low > min(values) else ''}, darkest {max(values):.2g}"
    )
    body.append(f'<text x="{left}" y="{foot + 18}">{escape(x)}; {ends}</text>')
    return _figure(title, _WIDTH, foot + 26, body)


def bars(title: str, parts: Mapping[str, float], *, show: Mapping[str, str]) -> str:
    """One horizontal bar per part, with its text ``show`` behind it."""
    most = max(parts.values(), default=0.0) or 1.0
    body = []
    for number, (name, value) in enumerate(parts.items()):
        y = _TOP + 22 * number
        width = (_WIDTH - 230 - 170) * value / most
        body.append(f'<text class="end" x="224" y="{y + 13}">{escape(name)}</text>')
        body.append(f'<rect class="f0" x="230" y="{y}" width="{width:.1f}" height="17"/>')
        body.append(f'<text x="{236 + width:.1f}" y="{y + 13}">{escape(show[name])}</text>')
    return _figure(title, _WIDTH, _TOP + 22 * len(parts) + 6, body)


def _grid(across: Axis, up: Axis, x: str, y: str) -> str:
    parts = []
    for value in up.ticks():
        at = up(value)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="end" x="{_LEFT - 6}" y="{at + 4:.1f}">{value:g}</text>')
    foot = _HEIGHT - _BOTTOM + 16
    for value in across.ticks():
        parts.append(f'<text class="mid" x="{across(value):.1f}" y="{foot}">{value:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="mid" x="{middle}" y="{foot + 14}">{escape(x)}</text>')
    parts.append(f'<text x="4" y="14">{escape(y)}</text>')
    return "".join(parts)


def _figure(
    title: str, width: float, height: float, body: Sequence[str], legend: Sequence[str] = ()
) -> str:
    keys = "".join(
        f'<span><i class="k{n}"></i>{escape(name)}</span>' for n, name in enumerate(legend)
    )
    drawing = (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {width} {height:.0f}">'
        f"{''.join(body)}</svg>"
    )
    caption = f"<figcaption>{escape(title)}{f'<div>{keys}</div>' if keys else ''}</figcaption>"
    return f"<figure>{caption}{drawing}</figure>"
