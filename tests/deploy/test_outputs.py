"""Every option for an output makes the folders that are missing, and nothing where it fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.files import make_folder, refuse_unwritable
from tests.deploy.render.plans import PLANS, site, written

LOAD = ["--isl", "2048", "--osl", "256", "--concurrency", "8"]
PLAN = ["plan", "--model", "glm-5.2", "--quant", "w4a8", "--hw", "a3-752t:1", *LOAD]
# What the README lists; DST of quantize and --work-dir make their folders themselves.
OUTPUTS = {
    *(("plan", "out"), ("plan", "chart"), ("render", "out"), ("endpoint", "out")),
    *(
        ("bundle", "out"),
        ("check", "sarif"),
        ("sensitivity", "out"),
        ("eval", "html"),
        ("export", "output"),
    ),
    *(("cost", "timeline"), ("demo", "keep")),
}


def commands(group: click.Command) -> Iterator[click.Command]:
    if isinstance(group, click.Group):
        for one in group.commands.values():
            yield from commands(one)
    else:
        yield group


def test_the_list_is_whole() -> None:
    found = set()
    for command in commands(cli):
        for option in command.params:
            words = (getattr(option, "help", "") or "").lower()
            writes = any(word in words for word in ("write", "into this", "keep the quantised"))
            if isinstance(option.type, click.Path) and writes:
                found.add((str(command.name), str(option.name)))
    assert found == OUTPUTS


def run(*words: object) -> None:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr


def test_plan(tmp_path: Path) -> None:
    out, chart = tmp_path / "a" / "b" / "plan.yaml", tmp_path / "c" / "chart.html"
    run(*PLAN, "--out", out, "--chart", chart)
    assert out.read_text().startswith("schema: 1")
    assert "<svg" in chart.read_text()


def test_render_endpoint_and_bundle(tmp_path: Path) -> None:
    made = PLANS["mixed two nodes"]
    plan, where = written(made, tmp_path), site(made)
    run("render", plan, *where, "--out", tmp_path / "r" / "s")
    assert (tmp_path / "r" / "s" / "node0.sh").is_file()
    run("endpoint", plan, *where[:2], "--out", tmp_path / "e" / "f")
    assert (tmp_path / "e" / "f" / "nginx.conf").is_file()
    for name in ("folder", "file.tar"):
        run("bundle", plan, *where, "--out", tmp_path / "g" / "h" / name)
        assert (tmp_path / "g" / "h" / name).exists()


def test_sarif(tmp_path: Path) -> None:
    script, target = tmp_path / "serve.sh", tmp_path / "i" / "j" / "found.sarif"
    script.write_text("vllm serve GLM-5.2-w4a8 --quantization ascend -tp 16\n")
    CliRunner().invoke(cli, ["check", str(script), "--for", "0.30", "--sarif", str(target)])
    assert json.loads(target.read_text())["version"] == "2.1.0"


def test_inputs_are_not_replaced(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve GLM-5.2-w4a8 -tp 16\n")
    made = PLANS["mixed two nodes"]
    plan, where = written(made, tmp_path), site(made)
    (tmp_path / "link.sh").symlink_to(script)
    (tmp_path / "nginx.conf").hardlink_to(plan)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for words in (
        ["check", script, "--for", "0.30", "--sarif", script],
        ["check", script, "--for", "0.30", "--sarif", tmp_path / "link.sh"],
        ["render", plan, "--format", "plan", "--out", tmp_path],
        ["endpoint", plan, *where[:2], "--out", tmp_path],
    ):
        result = CliRunner().invoke(cli, [str(word) for word in words])
        assert result.exit_code == 1, words
        assert "is read and would be replaced" in result.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_trial_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "a" / "b" / "c.yaml"
    refuse_unwritable(output, tmp_path / "a" / "d.html")
    assert list(tmp_path.iterdir()) == []
    make_folder(output)
    assert output.parent.is_dir()
    (tmp_path / "kept").write_text("1")
    refuse_unwritable(tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == "1"


@pytest.mark.parametrize("option", ["--out", "--chart"])
def test_a_folder_that_cannot_be_made(option: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli, [*PLAN, option, str(tmp_path / "file" / "x" / "y.html")])
    assert result.exit_code == 1
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["error", "hint"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
