"""The streaming writer: what the safetensors library reads back, and all-or-nothing files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import deserialize

from glm5_ascend import checkpoint_writer
from glm5_ascend.checkpoint import TensorSpec, require_free_space, write_shard, write_text
from glm5_ascend.errors import CheckpointError, DoesNotFit, ExitCode

SPECS = {
    "b.weight": TensorSpec((2, 3), "BF16"),
    "a.scale": TensorSpec((3,), "F32"),
    "empty": TensorSpec((0, 4), "F32"),
    "packed": TensorSpec((5,), "I8"),
}
DATA = {"b.weight": bytes(range(12)), "a.scale": b"\1" * 12, "empty": b"", "packed": b"\xff" * 5}


def write(path: Path, data: Iterator[tuple[str, bytes]] | None = None) -> None:
    write_shard(path, SPECS, DATA.items() if data is None else data, {"format": "pt"})


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    write(file)
    content = file.read_bytes()
    read = dict(deserialize(content))
    assert {name: bytes(entry["data"]) for name, entry in read.items()} == DATA
    assert {name: tuple(entry["shape"]) for name, entry in read.items()} == {
        name: spec.shape for name, spec in SPECS.items()
    }
    assert {name: entry["dtype"] for name, entry in read.items()} == {
        name: spec.dtype for name, spec in SPECS.items()
    }
    assert (8 + int.from_bytes(content[:8], "little")) % 8 == 0, "data must be aligned"
    assert content.endswith(b"".join(DATA.values())), "tensors lie in the order given"
    assert b'"__metadata__":{"format":"pt"}' in content


def test_equal_input_gives_equal_bytes_and_mode_0644(tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        write(tmp_path / "a.safetensors")
        write(tmp_path / "b.safetensors")
        write_text(tmp_path / "c.json", "{}")
    finally:
        os.umask(previous)
    contents = {(tmp_path / f"{name}.safetensors").read_bytes() for name in "ab"}
    assert len(contents) == 1
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert len(list(tmp_path.iterdir())) == 3


def test_a_memoryview_of_wider_items_is_written_as_bytes(tmp_path: Path) -> None:
    view = memoryview(bytes(range(12))).cast("f")
    write_shard(tmp_path / "x.safetensors", {"t": TensorSpec((3,), "F32")}, [("t", view)], {})
    assert (tmp_path / "x.safetensors").read_bytes().endswith(bytes(range(12)))


def pairs(*names: str) -> Iterator[tuple[str, bytes]]:
    return ((name, DATA[name]) for name in names)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pairs("b.weight", "a.scale", "empty"), "no data for packed"),
        (pairs("a.scale"), "expected b.weight"),
        (iter([("b.weight", b"x")]), r"got b.weight \(1 bytes\)"),
        (pairs(*DATA, "packed"), "expected end of file"),
    ],
    ids=["missing", "order", "size", "surplus"],
)
def test_data_must_match(tmp_path: Path, data: Iterator[tuple[str, bytes]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "x.safetensors", data)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_keeps_the_previous_file(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    write(file)
    before = file.read_bytes()

    def interrupted() -> Iterator[tuple[str, bytes]]:
        yield "b.weight", bytes(12)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(file, interrupted())
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_nothing_has_the_final_name_before_its_bytes_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(handle: int) -> None:
        events.append("fsync directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "fsync")
        fsync(handle)

    def spy_replace(source: Path, target: Path) -> None:
        assert source.name.startswith(".")
        assert source.suffix != ".safetensors", "a reader would pick it up"
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    write(tmp_path / "x.safetensors")
    assert events == ["fsync", "rename", "fsync directory"]


def test_disk_full_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_writer.os, "fsync", full)
    with pytest.raises(DoesNotFit, match="disk is full while writing") as caught:
        write(tmp_path / "x.safetensors")
    assert caught.value.exit_code is ExitCode.DOES_NOT_FIT
    assert list(tmp_path.iterdir()) == []


def test_destination_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write .*: No such file"):
        write_text(tmp_path / "absent" / "x.json", "{}")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*: Not a directory"):
        write_text(tmp_path / "file" / "x.json", "{}")


def test_free_space(tmp_path: Path) -> None:
    require_free_space(tmp_path / "not" / "yet" / "there", 1)
    with pytest.raises(DoesNotFit, match=r"needs 1000000 TB") as caught:
        require_free_space(tmp_path / "there", 10**18)
    assert str(tmp_path) in caught.value.message
