"""The pipes of a launch over time as one SVG file without outside references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from glm5_ascend.ops.emulator import abi
from glm5_ascend.ops.emulator.rates import Chip
from glm5_ascend.ops.emulator.report import Model, Occupation

_LEFT, _WIDTH, _ROW, _TOP = 130, 800, 14, 64
_LEVELS = 10
_COLOURS = {
    "S": "#6b7280",
    "V": "#7c3aed",
    "M": "#b91c1c",
    "MTE1": "#c2410c",
    "MTE2": "#1d4ed8",
    "MTE3": "#0f766e",
    "FIX": "#a16207",
}


@dataclass(frozen=True, slots=True)
class _Line:
    label: str
    pipe: str
    bins: Sequence[float]


def svg(title: str, model: Model, chip: Chip) -> str:
    """A picture: means over all cores, then every pipe of the first block and of the last to end.

    The darker, the larger the part of that time in which the pipe is busy.

    Args:
        title: of the picture.
        model: with bins.
        chip: for the axis in microseconds.
    """
    groups = [("mean of all cores", _means(model.lanes))]
    groups += [
        (f"block {block}{what}", _block(model.lanes, block)) for block, what in _blocks(model.lanes)
    ]
    lines, y = [], _TOP
    for name, rows in groups:
        lines.append(_text(4, y + 10, name, "font-weight='bold'"))
        y += _ROW + 2
        for row in rows:
            lines += _row(row, y)
            y += _ROW
        y += 8
    end = chip.microseconds(model.cycles)
    head = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_LEFT + _WIDTH + 20}' height='{y + 8}' "
        f"viewBox='0 0 {_LEFT + _WIDTH + 20} {y + 8}' font-family='sans-serif' font-size='10'>",
        f"<title>{escape(title)}</title>",
        "<rect width='100%' height='100%' fill='white'/>",
        _text(4, 16, title, "font-size='13'"),
        _text(4, 32, "modelled, not measured; launch head left out; darker: busy more of the time"),
        *_axis(end, y),
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x:g}' y='{y:g}' {more}>{escape(text)}</text>"


def _axis(end: float, bottom: int) -> list[str]:
    """Lines at round times."""
    step = next(
        factor * 10**power
        for power in range(-3, 7)
        for factor in (1, 2, 5)
        if end / (factor * 10**power) <= 10
    )
    marks = []
    for i in range(int(end / step) + 1):
        x = _LEFT + _WIDTH * i * step / end if end else _LEFT
        marks.append(
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{_TOP - 6}' y2='{bottom}' stroke='#d1d5db'/>"
        )
        marks.append(_text(x, _TOP - 10, f"{i * step:g} µs", "text-anchor='middle'"))
    return marks


def _row(line: _Line, y: int) -> list[str]:
    """One pipe: neighbours of the same shade are one rectangle."""
    out = [_text(14, y + 10, line.label)]
    width = _WIDTH / max(len(line.bins), 1)
    shades = [round(min(part, 1.0) * _LEVELS) for part in line.bins]
    start = 0
    for i in range(1, len(shades) + 1):
        if i < len(shades) and shades[i] == shades[start]:
            continue
        if shades[start]:
            out.append(
                f"<rect x='{_LEFT + start * width:.1f}' y='{y + 1}' height='{_ROW - 2}' "
                f"width='{(i - start) * width:.1f}' fill='{_COLOURS[line.pipe]}' "
                f"fill-opacity='{shades[start] / _LEVELS:g}'/>"
            )
        start = i
    return out


def _means(lanes: Sequence[Occupation]) -> list[_Line]:
    found = []
    for core in ("AIC", "AIV"):
        cores = {lane.core for lane in lanes if lane.core.startswith(core)}
        for pipe in abi.PIPES:
            rows = [
                lane.bins
                for lane in lanes
                if lane.core in cores and lane.pipe == pipe and lane.bins and lane.work
            ]
            if rows:
                means = [sum(parts) / len(cores) for parts in zip(*rows, strict=True)]
                found.append(_Line(f"{core}.{pipe}", pipe, means))
    return found


def _number(core: str) -> int:
    return int(core[3:].partition(".")[0])


def _blocks(lanes: Sequence[Occupation]) -> list[tuple[int, str]]:
    """The first block, and the one that ends last where that is another."""
    last = max(lanes, key=lambda lane: lane.end, default=None)
    if last is None:
        return []
    number = _number(last.core)
    return [(0, "")] + ([(number, ", ends last")] if number else [])


def _block(lanes: Sequence[Occupation], block: int) -> list[_Line]:
    return [
        _Line(f"{lane.core} {lane.pipe}", lane.pipe, lane.bins)
        for lane in lanes
        if _number(lane.core) == block and lane.bins and lane.work
    ]
