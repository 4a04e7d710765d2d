"""What --resume and --overwrite make of finished, damaged and foreign destinations."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from glm5_ascend.quant import work, workers
from glm5_ascend.quant.journal import JOURNAL, MANIFEST
from tests.quant.conftest import contents, json_of, quantize
from tests.quant.test_refusals import FIRST, assert_refused, edit_config, invoke
from tests.support.tiny_model import write_tiny

SCHEME = ("--scheme", "none")


@pytest.fixture
def own(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "source"))


@pytest.fixture
def finished(own: Path, tmp_path: Path) -> Path:
    return quantize(own, tmp_path / "out", "none")


def flip_byte(path: Path) -> None:
    """Same size, other content, old modification time."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def unfinish(directory: Path) -> None:
    """Turn a finished destination into what a run killed before its texts leaves."""
    manifest = json_of(directory / MANIFEST)
    files, done = manifest.pop("written"), manifest.pop("weights")
    journal = {"job": manifest, "files": files, "done": done}
    (directory / JOURNAL).write_text(json.dumps(journal))
    for path in (directory / MANIFEST, directory / "config.json"):
        path.unlink()


@pytest.mark.parametrize("prepare", [lambda directory: None, unfinish])
def test_damaged_outputs_are_written_again(
    prepare: Callable[[Path], None], own: Path, finished: Path
) -> None:
    before = contents(finished)
    prepare(finished)
    damaged = sorted(finished.glob("*.safetensors"))[1]
    flip_byte(damaged)
    result = invoke(own, finished, *SCHEME, "--resume", "--json")
    assert result.exit_code == 0
    assert f"{damaged} is damaged" in result.stderr
    summary = json.loads(result.stdout)
    assert summary["files_resumed"] == summary["files"] - 1
    assert contents(finished) == before


def test_a_finished_resume_says_so(own: Path, finished: Path) -> None:
    result = invoke(own, finished, *SCHEME, "--resume")
    assert result.exit_code == 0
    assert "files of weights are complete" in result.stderr
    assert " 0 B" not in result.stderr


def change_weights(directory: Path) -> None:
    """Same names, shapes and size, other values."""
    file = directory / FIRST
    before, size = load_file(file), file.stat().st_size
    name = next(name for name in before if name.endswith("q_a_proj.weight"))
    before[name] = before[name] * 2
    save_file(before, file, {"format": "pt"})
    assert file.stat().st_size == size


def change_tokenizer(directory: Path) -> None:
    flip_byte(directory / "tokenizer.json")


def drop_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()


@pytest.mark.parametrize("prepare", [lambda directory: None, unfinish])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_weights, (FIRST, "modification time")),
        (change_tokenizer, ("tokenizer.json", "changed")),
        (drop_tokenizer, ("tokenizer.json", "gone")),
        (edit_config(rms_norm_eps=2e-5), ("config.json",)),
    ],
)
def test_another_source_is_refused_by_name(
    prepare: Callable[[Path], None],
    change: Callable[[Path], None],
    words: tuple[str, ...],
    own: Path,
    finished: Path,
) -> None:
    prepare(finished)
    before = contents(finished)
    change(own)
    result = invoke(own, finished, *SCHEME, "--resume")
    assert_refused(result, 1, str(finished), *words)
    assert "--overwrite" in result.stderr
    assert contents(finished) == before
    assert invoke(own, finished, *SCHEME, "--overwrite").exit_code == 0


def test_another_shape_is_named_in_words(finished: Path, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "other", moe_intermediate_size=64)
    result = invoke(other, finished, *SCHEME, "--resume")
    assert_refused(result, 1, "the source's config.json", "more")
    assert "sha256" not in result.stderr


DAMAGES = {
    "not JSON": "{",
    "not an object": "[]",
    "too deep": "[" * 100_000,
    "incomplete": '{"job": {}, "choices": {}}',
    "a file without a digest": '{"job": {}, "files": [], "done": {"a": {"bytes": 1}}}',
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_journal_is_replaced_by_overwrite(damage: str, own: Path, finished: Path) -> None:
    before = contents(finished)
    unfinish(finished)
    (finished / JOURNAL).write_text(DAMAGES[damage])
    result = invoke(own, finished, *SCHEME, "--resume")
    assert_refused(result, 1, JOURNAL, "damaged")
    assert "--overwrite" in result.stderr
    assert "download" not in result.stderr
    (finished / "thesis.txt").write_text("mine")
    assert_refused(invoke(own, finished, *SCHEME, "--overwrite"), 1, "thesis.txt")
    (finished / "thesis.txt").unlink()
    assert invoke(own, finished, *SCHEME, "--overwrite").exit_code == 0
    assert contents(finished) == before


def test_a_damaged_manifest_is_replaced_by_overwrite(own: Path, finished: Path) -> None:
    before = contents(finished)
    (finished / MANIFEST).write_text("")
    assert_refused(invoke(own, finished, *SCHEME, "--resume"), 1, MANIFEST, "damaged")
    assert_refused(invoke(own, finished, *SCHEME), 1, "not empty")
    assert invoke(own, finished, *SCHEME, "--overwrite").exit_code == 0
    assert contents(finished) == before


def test_a_source_that_changes_during_the_run(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half old, half new weights never become a checkpoint."""
    write = work.write_file

    def write_and_touch(*arguments: Any) -> Any:
        os.utime(own / FIRST)
        return write(*arguments)

    monkeypatch.setattr(workers, "write_file", write_and_touch)
    result = invoke(own, tmp_path / "out", *SCHEME)
    assert_refused(result, 1, "changed during the run", FIRST)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert JOURNAL in names
    assert not names & {"config.json", MANIFEST}
    monkeypatch.undo()
    assert_refused(invoke(own, tmp_path / "out", *SCHEME, "--resume"), 1, FIRST)
    assert invoke(own, tmp_path / "out", *SCHEME, "--overwrite").exit_code == 0
