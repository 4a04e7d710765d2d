"""The report as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from html import escape

from glm5_ascend import __version__
from glm5_ascend.console import format_bytes
from glm5_ascend.inspection import PARTS
from glm5_ascend.quant.evaluation.layerwise import LayerScore
from glm5_ascend.quant.evaluation.plots import LEVELS, Point, bars, heat_map, lines
from glm5_ascend.quant.evaluation.report import C8_RECALL, Report, pooled, ratio

# Lightness of a heat map's ends on a light and on a dark page.
_LIGHT, _DARK = (96, 30), (18, 78)
_SERIES = ("#1f6feb", "#c2410c", "#15803d", "#7c3aed")
_SERIES_DARK = ("#6cb6ff", "#f0883e", "#57ab5a", "#b083f0")


def as_html(report: Report) -> str:
    """Return the document."""
    title = f"{report.directory.name} against {report.against.name}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        _summary(report),
        _findings(report),
        "<h2>Where the error arises</h2>",
        *_errors(report),
        "<h2>Choices</h2>",
        *_choices(report),
        "<h2>Outliers</h2>",
        _outliers(report),
        "<h2>Experts</h2>",
        _coverage(report),
        "<h2>Size</h2>",
        _sizes(report),
        "<h2>Layers in numbers</h2>",
        _table(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width"/>'
        f"<title>{escape(title)}</title><style>{_style()}</style></head>\n"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _summary(report: Report) -> str:
    text = report.text
    rows = "".join(
        f"<tr><th>{escape(label)}</th><td>{escape(shown)}</td></tr>"
        for label, shown in report.rows()
    )
    return (
        f"<p>Measured on a CPU, not on an NPU, by glm5-ascend {__version__}: {text['tokens']:,}"
        f" tokens of {escape(str(text['name']))} in {text['windows']} windows of"
        f" {text['window_tokens']}. Weights as stored, activations quantised as the engine does,"
        " the rest in F32. KL and entropies are in nats per token; brackets are 95 % bootstrap"
        " intervals over windows.</p>"
        f"<table>{rows}</table>"
    )


def _findings(report: Report) -> str:
    if not report.findings:
        return ""
    items = "".join(f"<li>{escape(finding)}</li>" for finding in report.findings)
    return f'<ul class="bad">{items}</ul>'


def _errors(report: Report) -> list[str]:
    layers = report.scores.layers
    found = ["<p>Squared relative error, everything before included.</p>"]
    if report.scores.has_basis:
        series = {
            "hidden states": _points(layers, [s.hidden for s in layers]),
            "attention's output": _points(layers, [s.attention for s in layers]),
            "MLP's output": _points(layers, [s.mlp for s in layers]),
        }
        found.append(lines("Error after each layer", series, x="layer", y="error", is_log=True))
    else:
        found.append("<p>The embeddings have no common basis, so no error can be given.</p>")
    if report.matrices is None:
        found.append("<p>Error of matrices: the rotation is not one that can be undone here.</p>")
    else:
        title = "Error of stored matrices (routed experts: mean of four)"
        rows = {_short(module): row for module, row in report.matrices.items()}
        found.append(heat_map(title, rows, is_log=True, x="layer"))
    return found


def _choices(report: Report) -> list[str]:
    layers = report.scores.layers
    series = {
        "index recall": _points(layers, [pooled(s.recall) for s in layers]),
        "expert agreement": _points(layers, [pooled(s.experts) for s in layers]),
        "int8 indexer keeps": _points(layers, [ratio(s.c8) for s in layers]),
    }
    exclude = ", ".join(map(str, report.c8_exclude)) or "none"
    return [
        lines("Choices shared with the reference", series, x="layer", y="share"),
        f"<p>Int8 indexer (LI-C8) on this checkpoint's own inputs: layers that keep less than"
        f" {100 * C8_RECALL:.0f} % of the positions, to be excluded: {exclude}. In use in"
        f" {len(report.layers_with_c8)} layers.</p>",
    ]


def _outliers(report: Report) -> str:
    layers = report.scores.layers
    series = {
        "before attention, source": _points(layers, [s.reference_peaks[0] for s in layers]),
        "before attention, here": _points(layers, [s.peaks[0] for s in layers]),
        "before MLP, source": _points(layers, [s.reference_peaks[1] for s in layers]),
        "before MLP, here": _points(layers, [s.peaks[1] for s in layers]),
    }
    title = "Largest value of a row over its root mean square, mean over tokens"
    return lines(title, series, x="layer", y="max / rms")


def _coverage(report: Report) -> str:
    rows = {
        f"layer {score.layer}": {i: float(n) for i, n in enumerate(score.coverage.tolist())}
        for score in report.scores.layers
        if score.coverage is not None
    }
    unused = sum(value == 0 for row in rows.values() for value in row.values())
    text = f"<p>Experts that no token of this text reached: {unused:,}.</p>"
    return heat_map("Tokens per expert", rows, is_log=False, x="expert") + text


def _sizes(report: Report) -> str:
    total = sum(report.part_bytes.values())
    parts = sorted(report.part_bytes.items(), key=lambda item: -item[1])
    show = {PARTS[n]: f"{format_bytes(size)}, {100 * size / total:.1f} %" for n, size in parts}
    sizes = {PARTS[name]: float(size) for name, size in parts}
    return bars(f"Bytes by part, {format_bytes(total)} in all", sizes, show=show)


def _table(report: Report) -> str:
    heads = ("layer", "hidden", "attention", "MLP", "index recall", "int8 keeps", "experts")
    head = "".join(f"<th>{name}</th>" for name in heads)
    rows = "".join(_row(score) for score in report.scores.layers)
    return f'<div class="wide"><table class="num"><tr>{head}</tr>{rows}</table></div>'


def _row(score: LayerScore) -> str:
    errors = (score.hidden, score.attention, score.mlp)
    shares = (pooled(score.recall), ratio(score.c8), pooled(score.experts))
    cells = [str(score.layer)]
    cells += ["–" if value is None else f"{value:.2e}" for value in errors]
    cells += ["–" if value is None else f"{100 * value:.2f} %" for value in shares]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _points(layers: list[LayerScore], values: list[float | None]) -> list[Point]:
    return [
        (float(score.layer), value)
        for score, value in zip(layers, values, strict=True)
        if value is not None
    ]


def _short(module: str) -> str:
    return module.removeprefix("self_attn.").removeprefix("mlp.")


def _style() -> str:
    return (
        ":root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--line:#d8dee4;--bad:#b42318}"
        "@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e4e7eb;--line:#363c43;"
        "--bad:#ff8a80}}"
        "body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;margin:0}"
        "main{max-width:900px;margin:0 auto;padding:1rem}h2{margin:2rem 0 .5rem}"
        "table{border-collapse:collapse}th,td{border-bottom:1px solid var(--line);"
        "padding:.25rem .8rem;text-align:left;font-variant-numeric:tabular-nums}"
        "table.num td,table.num th{text-align:right}.wide{overflow-x:auto}"
        "figure{margin:1rem 0}figcaption{font-weight:600}figcaption div{font-weight:400}"
        "figcaption span{margin-right:1.2rem}figcaption i{display:inline-block;width:.8em;"
        "height:.8em;margin-right:.35em}.bad{color:var(--bad);font-weight:600}"
        "svg{width:100%;height:auto}svg text{fill:var(--fg);font-size:12px}"
        "svg line{stroke:var(--line)}svg .end{text-anchor:end}svg .mid{text-anchor:middle}"
        "polyline{fill:none;stroke-width:2}" + _palette()
    )


def _palette() -> str:
    dark = "".join(_series(n, colour) for n, colour in enumerate(_SERIES_DARK)) + _levels(*_DARK)
    light = "".join(_series(n, colour) for n, colour in enumerate(_SERIES)) + _levels(*_LIGHT)
    return f"{light}@media(prefers-color-scheme:dark){{{dark}}}"


def _series(number: int, colour: str) -> str:
    return (
        f"polyline.s{number}{{stroke:{colour}}}circle.s{number},.f{number}{{fill:{colour}}}"
        f".k{number}{{background:{colour}}}"
    )


def _levels(first: int, last: int) -> str:
    steps = [first + (last - first) * n / (LEVELS - 1) for n in range(LEVELS)]
    return "".join(f".h{n}{{fill:hsl(213 70% {step:.0f}%)}}" for n, step in enumerate(steps))
