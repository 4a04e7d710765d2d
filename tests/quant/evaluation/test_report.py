"""The report as text, JSON and HTML, and what the command refuses."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from glm5_ascend import cli_eval
from glm5_ascend.cli import cli
from glm5_ascend.quant.evaluation.html import as_html
from glm5_ascend.quant.evaluation.plots import Axis, bars, heat_map, lines
from glm5_ascend.quant.evaluation.report import Report
from tests.quant.damage import copy_of, edit_json

SVG = ".//svg"


def evaluate(*words: object) -> Any:
    return CliRunner().invoke(cli, ["eval", *map(str, words)])


def test_json_has_every_layer_and_no_nan(report: Report) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    document = json.loads(json.dumps(report.as_dict()), parse_constant=refuse)
    assert document["schema"] == 1
    assert [layer["layer"] for layer in document["layers"]] == [0, 1, 2, 3, 4]
    low, high = document["metrics"]["kl_mean"]["interval"]
    assert low <= document["metrics"]["kl_mean"]["value"] <= high
    assert sum(document["part_bytes"].values()) > 0
    assert set(document["matrices"]["mlp.experts.up_proj"]) == {"1", "2", "3", "4"}


def test_text_names_every_metric(report: Report) -> None:
    text = report.as_text()
    for label in ("bits per byte", "KL, mean", "index recall", "MTP acceptance", "entropy"):
        assert label in text
    assert "FOUND" not in text


def test_html_is_whole_and_needs_nothing(report: Report) -> None:
    text = as_html(report)
    assert not re.search(r"<script|src=|href=|https?:|@import|url\(", text)
    assert "prefers-color-scheme:dark" in text
    tree = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert len(tree.findall(SVG)) == 6
    used = set(re.findall(r'class="([sfhk]\d)"', text))
    assert used
    for name in used:
        assert f".{name}{{" in text or f".{name}," in text
    titles = [element.text or "" for element in tree.iter("title")]
    cells = [title for title in titles if title.startswith("layer ") and ", expert " in title]
    assert len(cells) == 4 * 8  # MoE layers times experts


def test_html_escapes_names(report: Report) -> None:
    named = replace(report, text={**report.text, "name": "<b>&.txt"})
    assert "&lt;b&gt;&amp;.txt" in as_html(named)


def test_points_lie_where_their_values_are() -> None:
    text = lines("t", {"a": [(0, 1.0), (1, 10.0), (2, 100.0)]}, x="x", y="y", is_log=True)
    points = re.search(r'polyline class="s0" points="([^"]+)"', text)
    assert points is not None
    (x0, y0), (x1, y1), (x2, y2) = (map(float, p.split(",")) for p in points[1].split())
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y2 < y0  # more is higher
    assert "nothing to show" in lines("t", {"a": [(0, 0.0)]}, x="x", y="y", is_log=True)


def test_heat_map_uses_both_ends_and_bars_their_lengths() -> None:
    rows = {"a": {0: 1e-4, 1: 1e-2}, "b": {0: 1e-3, 2: 0.0}}
    text = heat_map("t", rows, is_log=True, x="layer")
    assert re.findall(r'<rect class="h(\d)"', text) == ["0", "8", "4", "0"]
    text = bars("t", {"a": 2, "b": 1}, show={"a": "", "b": ""})
    first, second = re.findall(r'width="([\d.]+)" height="17"/>', text)
    assert float(first) == pytest.approx(2 * float(second))


def test_ticks_are_round_and_inside() -> None:
    for low, high in ((0.0, 1.0), (0.93, 0.99), (3, 77), (2.0, 2.0)):
        ticks = Axis(low, high, 0, 100).ticks()
        assert ticks
        assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    assert Axis(1e-5, 1e-1, 0, 1, True).ticks() == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2])
    assert Axis(3e-4, 6e-3, 0, 1, True).ticks() == pytest.approx([5e-4, 1e-3, 2e-3, 5e-3])


def test_command_writes_the_report(source: Path, w4a8: Path, prose: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    words = (w4a8, "--against", source, "--text", prose, "--tokens", 100, "--html", file)
    done = evaluate(*words, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["text"]["tokens"] == 128
    assert file.read_text().startswith("<!DOCTYPE html>")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    again = evaluate(*words)
    assert (again.exit_code, "exists" in again.stderr) == (1, True)
    limited = evaluate(*words, "--overwrite", "--max-kl", "1e-9")
    assert limited.exit_code == 1
    assert "above --max-kl" in limited.stdout


@pytest.mark.parametrize(
    ("content", "tokens", "message"),
    [
        (b"too short", 10, "gives 0 windows"),
        (b"\xff\xfe" * 900, 10, "not UTF-8"),
        (b"words and words " * 40, 10_000, "are wanted"),
    ],
)
def test_unusable_text(
    content: bytes, tokens: int, message: str, source: Path, w4a8: Path, tmp_path: Path
) -> None:
    file = tmp_path / "text"
    file.write_bytes(content)
    done = evaluate(w4a8, "--against", source, "--text", file, "--tokens", tokens)
    assert done.exit_code == 1
    assert message in done.stderr
    assert "hint:" in done.stderr


def test_another_model_and_missing_files(source: Path, w4a8: Path, tmp_path: Path) -> None:
    other = copy_of(source, tmp_path / "other")
    edit_json(other / "config.json", rope_parameters={"rope_theta": 10_000, "rope_type": "default"})
    done = evaluate(w4a8, "--against", other)
    assert (done.exit_code, "rope_theta" in done.stderr) == (1, True)
    assert evaluate(w4a8, "--against", source, "--text", tmp_path / "none").exit_code == 1
    assert evaluate(tmp_path / "none", "--against", source).exit_code == 1
    nowhere = evaluate(w4a8, "--against", source, "--html", w4a8 / "config.json" / "r.html")
    assert (nowhere.exit_code, "cannot write" in nowhere.stderr) == (1, True)
    assert evaluate(w4a8).exit_code == 2


@pytest.mark.parametrize("kind", ["other file", "folder", "pipe", "link to a device"])
def test_overwrite_replaces_reports_only(
    kind: str, source: Path, w4a8: Path, prose: Path, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    match kind:
        case "other file":
            file.write_text("{}")
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case _:
            file.symlink_to("/dev/null")
    before = _kind(file)
    words = (w4a8, "--against", source, "--text", prose, "--tokens", 100, "--html", file)
    done = evaluate(*words, "--overwrite")
    assert (done.exit_code, "is no HTML file" in done.stderr) == (1, True)
    assert _kind(file) == before


def _kind(file: Path) -> tuple[int, int, int]:
    status = file.lstat()
    return status.st_ino, status.st_mode, status.st_size


def test_without_torch(w4a8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_eval, "find_spec", lambda name: None)
    done = evaluate(w4a8, "--against", w4a8)
    assert done.exit_code == 5
    assert "eval needs torch" in done.stderr
    assert "pip install" in done.stderr
