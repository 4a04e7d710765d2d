"""Broken inputs: one ``error:`` line, a hint, the documented exit code, nothing left behind."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from glm5_ascend.cli import cli
from glm5_ascend.quant.journal import JOURNAL
from tests.quant.conftest import contents, json_of, quantize
from tests.support.tiny_model import write_tiny

Break = Callable[[Path], None]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["quantize", *map(str, arguments)])


def assert_refused(result: Result, code: int, *words: str) -> None:
    """One error line that names what is wrong, one hint, no traceback."""
    lines = result.stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    assert [line for line in lines if line.startswith("hint: ")], result.stderr
    assert all(word in errors[0] for word in words), errors[0]
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert result.exit_code == code


def edit_tensors(file: str, change: Callable[[dict[str, torch.Tensor]], None]) -> Break:
    def apply(directory: Path) -> None:
        tensors = load_file(directory / file)
        change(tensors)
        save_file(tensors, directory / file)

    return apply


def edit_config(**changes: Any) -> Break:
    def apply(directory: Path) -> None:
        config = json_of(directory / "config.json") | changes
        (directory / "config.json").write_text(json.dumps(config))

    return apply


def truncate(directory: Path) -> None:
    data = (directory / SHARD).read_bytes()
    (directory / SHARD).write_bytes(data[:-100])


def drop_file(directory: Path) -> None:
    (directory / SHARD).unlink()


def no_directory(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("not a directory")


def without_index(change: Break) -> Break:
    """Names that the index disagrees with are another defect; drop the index first."""

    def apply(directory: Path) -> None:
        (directory / "model.safetensors.index.json").unlink()
        change(directory)

    return apply


def set_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors[EXPERT][2, 3] = float("nan")


def remove_indexer(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.0.self_attn.indexer.wk.weight"]


def add_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.3.self_attn.indexer.wk.weight"] = torch.zeros(128, 96)


def shorten(tensors: dict[str, torch.Tensor]) -> None:
    name = "model.layers.0.self_attn.q_a_proj.weight"
    tensors[name] = tensors[name][:-1].contiguous()


SHARD = "model-00002-of-00003.safetensors"
FIRST = "model-00001-of-00003.safetensors"
EXPERT = "model.layers.2.mlp.experts.5.down_proj.weight"


@dataclass(frozen=True)
class Case:
    """``words`` must appear in the error line."""

    apply: Break
    words: tuple[str, ...]


CASES = {
    "truncated shard": Case(truncate, (SHARD, "truncated")),
    "missing indexer tensor": Case(
        without_index(edit_tensors(FIRST, remove_indexer)), ("lacks tensor", "indexer.wk")
    ),
    "extra tensor": Case(
        without_index(edit_tensors(SHARD, add_tensor)), (SHARD, "layers.3.self_attn.indexer.wk")
    ),
    "wrong shape": Case(edit_tensors(FIRST, shorten), (FIRST, "q_a_proj", "shape")),
    "index names a missing file": Case(drop_file, ("index", SHARD)),
    "glm5_next": Case(edit_config(model_type="glm5_next"), ("glm5_next",)),
    "indexer_types contradict the schedule": Case(
        edit_config(indexer_types=["full"] * 4), ("indexer_types",)
    ),
    "unreadable directory": Case(no_directory, ("source",)),
    "hidden size without Hadamard matrix": Case(
        lambda directory: shutil.copytree(
            write_tiny(directory.parent / "odd", hidden_size=224, shards=3),
            directory,
            dirs_exist_ok=True,
        ),
        ("R1", "224"),
    ),
}


@pytest.fixture
def broken(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "source"))


@pytest.mark.parametrize("name", list(CASES))
def test_broken_sources_are_refused_before_any_work(
    name: str, broken: Path, tmp_path: Path
) -> None:
    CASES[name].apply(broken)
    destination = tmp_path / "out"
    result = invoke(broken, destination, "--scheme", "w4a8")
    assert_refused(result, 1, *CASES[name].words)
    assert not destination.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_nan_is_found_while_streaming(workers: int, broken: Path, tmp_path: Path) -> None:
    """Values are checked as they are read; what was written before stays resumable."""
    file = next(p for p in broken.glob("*.safetensors") if EXPERT in load_file(p))
    edit_tensors(file.name, set_nan)(broken)
    destination = tmp_path / "out"
    result = invoke(broken, destination, "--scheme", "w4a8", "--workers", workers)
    assert_refused(result, 1, EXPERT, file.name, "NaN")
    left = {path.name for path in destination.iterdir()}
    assert JOURNAL in left
    assert "config.json" not in left
    assert not [name for name in left if name.endswith(".part")]


def test_full_disk_is_seen_before_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**6, 10**6))
    result = invoke(source, tmp_path / "out", "--scheme", "w4a8")
    assert_refused(result, 3, "free")
    assert not (tmp_path / "out").exists()


def test_a_quantised_source_is_refused(w4a8: Path, tmp_path: Path) -> None:
    assert_refused(invoke(w4a8, tmp_path / "out", "--scheme", "w8a8"), 1, "quantised already")


def test_odd_expert_width_is_refused(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source", moe_intermediate_size=24)
    result = invoke(source, tmp_path / "out", "--scheme", "w4a8")
    assert_refused(result, 1, "down_proj", "multiple of 16")
    assert quantize(source, tmp_path / "out", "w8a8")


def test_destination_in_or_equal_to_the_source(broken: Path) -> None:
    before = contents(broken)
    assert_refused(invoke(broken, broken, "--scheme", "none"), 1, "the source")
    assert_refused(invoke(broken, broken / "out", "--scheme", "none"), 1, "inside the source")
    link = broken.with_name("link")
    link.symlink_to(broken)
    assert_refused(invoke(broken, link, "--scheme", "none", "--overwrite"), 1, "the source")
    assert contents(broken) == before


def test_foreign_files_are_never_touched(source: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    (home / "config.json").write_text("{}")
    for option in ("--overwrite", "--resume", "--json"):
        assert_refused(invoke(source, home, "--scheme", "none", option), 1, "home")
    assert contents(home) == {"thesis.txt": b"years of work", "config.json": b"{}"}


def test_overwrite_replaces_only_own_output(source: Path, tmp_path: Path) -> None:
    destination = quantize(source, tmp_path / "out", "none")
    assert_refused(invoke(source, destination, "--scheme", "w8a8"), 1, "not empty")
    (destination / "notes.md").write_text("mine")
    result = invoke(source, destination, "--scheme", "w8a8", "--overwrite")
    assert_refused(result, 1, "notes.md")
    (destination / "notes.md").unlink()
    (destination / "folder").mkdir()
    assert_refused(invoke(source, destination, "--scheme", "w8a8", "--overwrite"), 1, "folder")
    (destination / "folder").rmdir()
    assert invoke(source, destination, "--scheme", "w8a8", "--overwrite").exit_code == 0
    assert contents(destination) == contents(quantize(source, tmp_path / "fresh", "w8a8"))


def test_resume_needs_the_same_job(broken: Path, tmp_path: Path) -> None:
    destination = quantize(broken, tmp_path / "out", "none")
    before = contents(destination)
    assert invoke(broken, destination, "--scheme", "none", "--resume").exit_code == 0
    assert contents(destination) == before
    result = invoke(broken, destination, "--scheme", "none", "--no-rotate", "--resume")
    assert_refused(result, 1, "rotate (True, now False)")
    file = broken / "model-00001-of-00003.safetensors"
    tensors = load_file(file)
    save_file(tensors, file, {"edited": "yes"})
    result = invoke(broken, destination, "--scheme", "none", "--resume")
    assert_refused(result, 1, "the source's file model-00001-of-00003.safetensors", "its header")
    assert contents(destination) == before


def test_resume_and_overwrite_exclude_each_other(source: Path, tmp_path: Path) -> None:
    result = invoke(source, tmp_path / "out", "--scheme", "none", "--resume", "--overwrite")
    assert result.exit_code == 2
