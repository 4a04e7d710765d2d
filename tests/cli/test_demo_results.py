"""The README's table of results: rendering of rows, and what --check notices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.demo import VARIANTS
from glm5_ascend.demo_table import LINES
from tools.results_table import cell, check, last_run, markdown, rendered, sha256

LINE = {line.key: line for line in LINES}
README = "# Title\n\n<!-- generated: results -->\nold\n<!-- end -->\n\nrest\n"


def make_row(name: str, title: str, date: str, digest: str) -> dict[str, Any]:
    return {
        "variant": name,
        "title": title,
        "date": date,
        "commit": "0123456789abcdef",
        "dirty": False,
        "python": "3.11.9",
        "hardware": "2 x Some CPU, CPU emulation, no NPU",
        "command": "python -m tools.results_table",
        "model_sha256": digest,
        "text_bytes": 263_000,
        "windows": 170,
        "window_tokens": 512,
        "metrics": {
            "checkpoint_bytes": {"value": 12_300_000},
            "bits_per_byte": {"value": 1.4, "interval": [1.38, 1.42]},
            "top1_agreement": {"value": 0.9, "interval": [0.88, 0.91]},
            "kl_mean": {"value": 0.0, "interval": [0.0, 0.0]},
        },
    }


@pytest.fixture
def project(tmp_path: Path) -> tuple[Path, Path, Path]:
    """README, rows of two runs, and the model they were measured with."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    digest = sha256(model / "model.safetensors")
    rows = [
        make_row(variant.name, variant.title, date, digest)
        for date in ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z")
        for variant in VARIANTS
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    readme = tmp_path / "README.md"
    readme.write_text(rendered(README, markdown(last_run(file))))
    return readme, file, model


def test_cells_show_the_interval_where_it_has_a_width() -> None:
    bits = {"value": 1.4, "interval": [1.38, 1.42]}
    assert cell(LINE["bits_per_byte"], bits) == "1.4000 [1.3800, 1.4200]"
    share = {"value": 0.9, "interval": [0.88, 0.91]}
    assert cell(LINE["top1_agreement"], share) == "90.0 % [88.0, 91.0]"
    assert cell(LINE["kl_mean"], {"value": 0.0, "interval": [0.0, 0.0]}) == "0.00000"
    assert cell(LINE["tokens_per_s"], {"value": 41.26}) == "41.3"
    assert cell(LINE["tokens_per_s"], None) == "–"


def test_table_is_that_of_the_last_run(project: tuple[Path, Path, Path]) -> None:
    readme, file, model = project
    text = readme.read_text()
    assert "| | BF16 | W8A8 | W4A8 | W4A8 unrotated |" in text
    assert text.count("| 1.4000 [1.3800, 1.4200] ") == len(VARIANTS)
    for part in ("263,000 bytes", "2026-02-01", "commit 0123456789ab", "no NPU", "rest"):
        assert part in text
    assert "2026-01-01" not in text
    assert check(readme, file, model) == []


def test_check_notices_edits_new_rows_and_another_model(
    project: tuple[Path, Path, Path],
) -> None:
    readme, file, model = project
    good = readme.read_text()
    readme.write_text(good.replace("1.4000", "1.3000", 1))
    assert any("--render" in problem for problem in check(readme, file, model))
    readme.write_text(good)
    (model / "model.safetensors").write_bytes(b"others")
    assert check(readme, file, model) == [f"{file.name} was measured with another model: run again"]


def test_a_readme_without_the_block_is_refused() -> None:
    with pytest.raises(SystemExit, match="no <!-- generated: results --> block"):
        rendered("# Title\n", "table")
