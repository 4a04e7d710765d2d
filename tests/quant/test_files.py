"""Texts, paths and permissions: copied exactly, or refused before any work."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glm5_ascend.errors import CheckpointError, ConfigError, Glm5Error
from glm5_ascend.quant.command import QuantizeOptions, run
from glm5_ascend.quant.scheme import Scheme, stored_tensors
from tests.quant.conftest import json_of, quantize
from tests.quant.test_refusals import assert_refused, edit_config, invoke

NOBODY = 65534


@pytest.fixture
def own(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "source"))


def test_companions_are_copied_byte_for_byte(own: Path, tmp_path: Path) -> None:
    latin = "Licence \u00e0 lire\r\n".encode("latin-1")
    (own / "LICENSE").write_bytes(latin)
    output = quantize(own, tmp_path / "out", "none")
    assert (output / "LICENSE").read_bytes() == latin
    assert (output / "tokenizer.json").read_bytes() == (own / "tokenizer.json").read_bytes()


def test_a_lone_surrogate_in_the_configuration(own: Path, tmp_path: Path) -> None:
    edit_config(name_or_path="a\ud800b \u00e9")(own)
    output = quantize(own, tmp_path / "out", "none")
    text = (output / "config.json").read_text(encoding="utf-8")
    assert "\\ud800" in text
    assert "\u00e9" in text
    assert json.loads(text)["name_or_path"] == "a\ud800b \u00e9"


@pytest.mark.parametrize("kind", ["directory", "pipe", "broken link"])
def test_companions_are_checked_before_work(kind: str, own: Path, tmp_path: Path) -> None:
    path = own / "tokenizer.json"
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    result = invoke(own, tmp_path / "out", "--scheme", "none")
    assert_refused(result, 1, str(path), "cannot read")
    assert not (tmp_path / "out").exists()


def test_links_in_circles_and_long_paths(own: Path, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    broken = tmp_path / "broken"
    broken.symlink_to(tmp_path / "nowhere")
    file = tmp_path / "file"
    file.write_text("mine")
    bad = [loop, broken, file, file / "below", loop / "below", tmp_path / ("x" * 300)]
    for path in bad:
        assert_refused(invoke(path, tmp_path / "out", "--scheme", "none"), 1, str(path))
        assert_refused(invoke(own, path, "--scheme", "none"), 1, str(path))
        assert_refused(invoke(own, path, "--scheme", "none", "--overwrite"), 1, str(path))
    assert not (tmp_path / "out").exists()
    assert file.read_text() == "mine"


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that an unprivileged user may reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def readable_copy(source: Path, home: Path) -> Path:
    result = Path(shutil.copytree(source, home / "source"))
    for path in result.iterdir():
        os.chmod(path, 0o644)
    return result


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permissions mean nothing to root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def refuse(source: Path, destination: Path, **changes: bool) -> Glm5Error:
    with unprivileged(), pytest.raises(CheckpointError) as caught:
        run(QuantizeOptions(source, destination, "none", **changes))
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_a_source_without_permissions(mode: int, own: Path, home: Path) -> None:
    source = readable_copy(own, home)
    os.chmod(source, mode)
    try:
        with unprivileged(), pytest.raises(Glm5Error, match=str(source)) as caught:
            run(QuantizeOptions(source, home / "out", "none"))
        assert "ermission" in caught.value.message
    finally:
        os.chmod(source, 0o755)
    assert not (home / "out").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_source_file_without_permissions(name: str, own: Path, home: Path) -> None:
    source = readable_copy(own, home)
    os.chmod(source / name, 0)
    with unprivileged(), pytest.raises(Glm5Error, match=f"{name}: Permission denied"):
        run(QuantizeOptions(source, home / "out", "none"))
    assert not (home / "out").exists()


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o555])
def test_a_destination_without_permissions(mode: int, own: Path, home: Path) -> None:
    """Neither a new run nor --overwrite or --resume gets further than the check."""
    source = readable_copy(own, home)
    destination = quantize(source, home / "out", "none")
    names = sorted(os.listdir(destination))
    os.chmod(destination, mode)
    try:
        for options in ({}, {"overwrite": True}, {"resume": True}):
            error = refuse(source, destination, **options)
            assert str(destination) in error.message
            assert "ermission" in error.message
        inner = refuse(source, destination / "inner")
        assert str(destination / "inner") in inner.message
    finally:
        os.chmod(destination, 0o755)
    assert sorted(os.listdir(destination)) == names


def test_an_unreadable_manifest(own: Path, home: Path) -> None:
    source = readable_copy(own, home)
    destination = quantize(source, home / "out", "none")
    os.chmod(destination, 0o777)
    os.chmod(destination / "quantize_manifest.json", 0)
    error = refuse(source, destination, resume=True)
    assert "quantize_manifest.json: Permission denied" in error.message
    assert "readable" in error.hint
    assert json_of(destination / "config.json")


@pytest.mark.parametrize(
    ("shape", "scheme", "hint"),
    [
        ((64, 62), Scheme.W8A8_DYNAMIC, "none"),
        ((62, 64), Scheme.W4A8_DYNAMIC, "none"),
        ((60, 64), Scheme.W4A8_DYNAMIC, "w8a8"),
    ],
)
def test_hints_name_a_scheme_that_works(shape: tuple[int, int], scheme: Scheme, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stored_tensors("model.layers.3.mlp.experts.0.up_proj.weight", shape, scheme, "BF16")
    assert caught.value.hint == f"use --scheme {hint}"
