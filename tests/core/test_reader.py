"""Reading checkpoints, and one error for each way in which a checkpoint can be broken."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from glm5_ascend.checkpoint import CheckpointReader, TensorSpec, expected_tensors
from glm5_ascend.errors import CheckpointError, Glm5Error
from tests.core import micro

GATE = "model.layers.1.mlp.gate.weight"
INDEXER = "model.layers.3.self_attn.indexer.wk.weight"


@pytest.mark.parametrize("index", [False, True], ids=["no index", "index"])
@pytest.mark.parametrize("shards", [1, 3])
def test_reads_every_byte(tmp_path: Path, shards: int, index: bool) -> None:
    stored = micro.write(tmp_path, shards=shards, index=index)
    with CheckpointReader(tmp_path) as reader:
        reader.check_inventory(expected_tensors(reader.config))
        assert sorted(reader.names()) == sorted(stored)
        assert len(reader.files()) == shards
        for name, (spec, data) in stored.items():
            assert reader.spec(name) == spec
            assert reader.raw(name) == data
            assert reader.nbytes(name) == len(data)
            assert reader.file_of(name).parent == tmp_path
            reader.check_finite(name)


def test_views_outlive_the_reader_and_never_reach_the_file(tmp_path: Path) -> None:
    stored = micro.write(tmp_path)
    with CheckpointReader(tmp_path) as reader:
        view = reader.raw(GATE)
        file = reader.file_of(GATE)
    before = file.read_bytes()
    assert view == stored[GATE][1]
    view[0] ^= 0xFF
    assert file.read_bytes() == before


def test_wider_dtype_is_accepted_and_narrower_is_not(tmp_path: Path) -> None:
    stored = micro.write(tmp_path / "bf16")
    wide = micro.tensors(micro.config(dtype="float32"))
    micro.write(tmp_path / "f32", wide)
    with CheckpointReader(tmp_path / "f32") as reader:
        reader.check_inventory(expected_tensors(micro.config()))
    with (
        CheckpointReader(tmp_path / "bf16") as reader,
        pytest.raises(CheckpointError, match="has dtype BF16, expected F32"),
    ):
        reader.check_inventory(expected_tensors(micro.config(dtype="float32")))
    assert stored.keys() == wide.keys()


def test_links_to_blobs_are_followed(tmp_path: Path) -> None:
    stored = micro.write(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    with CheckpointReader(tmp_path / "snapshot") as reader:
        assert reader.raw(GATE) == stored[GATE][1]


def header(file: Path) -> tuple[dict[str, dict[str, object]], bytes]:
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def rewrite(file: Path, entries: object, data: bytes) -> None:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def shard(directory: Path) -> Path:
    return directory / "model-00001-of-00001.safetensors"


def truncated(directory: Path) -> None:
    file = shard(directory)
    file.write_bytes(file.read_bytes()[:-1])


def truncated_in_header(directory: Path) -> None:
    file = shard(directory)
    file.write_bytes(file.read_bytes()[:100])


def empty(directory: Path) -> None:
    shard(directory).write_bytes(b"")


def huge_header(directory: Path) -> None:
    with open(shard(directory), "r+b") as stream:
        stream.write(struct.pack("<Q", 200_000_000))
        stream.truncate(300_000_000)


def trailing(directory: Path) -> None:
    with open(shard(directory), "ab") as stream:
        stream.write(b"\0")


def edit(change: Callable[[dict[str, dict[str, object]]], None]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        entries, data = header(shard(directory))
        change(entries)
        rewrite(shard(directory), entries, data)

    return apply


def move_first(entries: dict[str, dict[str, object]], by: int) -> None:
    first, second = sorted(
        (name for name in entries if name != "__metadata__"),
        key=lambda name: entries[name]["data_offsets"][0],  # type: ignore[index]
    )[:2]
    start, end = entries[second]["data_offsets"]  # type: ignore[misc]
    entries[second]["data_offsets"] = [start + by, end + by]
    assert first != second


def not_json(directory: Path) -> None:
    rewrite(shard(directory), b"{]", b"")


def name_twice(directory: Path) -> None:
    rewrite(shard(directory), b'{"a": {}, "a": {}}', b"")


def not_object(directory: Path) -> None:
    rewrite(shard(directory), b"[]", b"")


def pickles(directory: Path) -> None:
    shard(directory).rename(directory / "pytorch_model.bin")


def nothing(directory: Path) -> None:
    shard(directory).unlink()


def twice(directory: Path) -> None:
    part = {GATE: micro.tensors(micro.config())[GATE]}
    micro.save(directory / "other.safetensors", part)


def folder_for_file(directory: Path) -> None:
    shard(directory).unlink()
    shard(directory).mkdir()


def link_loop(directory: Path) -> None:
    shard(directory).unlink()
    shard(directory).symlink_to(shard(directory))


def index_names_missing_file(directory: Path) -> None:
    names = dict.fromkeys(micro.tensors(micro.config()), shard(directory).name)
    micro.write_index(directory, names | {GATE: "model-00002-of-00002.safetensors"})


def index_of_another(directory: Path) -> None:
    names = dict.fromkeys(micro.tensors(micro.config()), shard(directory).name)
    micro.write_index(directory, names | {"model.layers.9.x": shard(directory).name})


def index_lacks_tensor(directory: Path) -> None:
    names = dict.fromkeys(micro.tensors(micro.config()), shard(directory).name)
    del names[GATE]
    micro.write_index(directory, names)


def index_escapes(directory: Path) -> None:
    micro.write_index(directory, {GATE: "../other/model.safetensors"})


def index_empty(directory: Path) -> None:
    micro.write_index(directory, {})


def two_indexes(directory: Path) -> None:
    names = dict.fromkeys(micro.tensors(micro.config()), shard(directory).name)
    micro.write_index(directory, names)
    index = directory / "model.safetensors.index.json"
    (directory / "quant_model_weights.safetensors.index.json").write_text(index.read_text())


def index_not_json(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text("{")


SHARD = "model-00001-of-00001.safetensors"
BROKEN: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "truncated": (truncated, ("is truncated", "tensor model.", SHARD)),
    "truncated in header": (truncated_in_header, ("is truncated", SHARD)),
    "empty file": (empty, ("is truncated", SHARD)),
    "header too large": (huge_header, ("exceeds the format's limit", SHARD)),
    "bytes at the end": (trailing, ("1 bytes after the last tensor", SHARD)),
    "gap": (edit(lambda e: move_first(e, 2)), ("leaves a gap", SHARD)),
    "overlap": (edit(lambda e: move_first(e, -2)), ("overlaps", SHARD)),
    "header not JSON": (not_json, ("not valid JSON", SHARD)),
    "name twice in header": (name_twice, ("'a' occurs twice", SHARD)),
    "header not an object": (not_object, ("not a JSON object", SHARD)),
    "unknown dtype": (edit(lambda e: e[GATE].update(dtype="F4")), ("'F4'", GATE, SHARD)),
    "wrong length": (edit(lambda e: e[GATE].update(shape=[3, 13])), ("span 72", GATE, SHARD)),
    "negative shape": (edit(lambda e: e[GATE].update(shape=[-3, -12])), ("malformed", GATE, SHARD)),
    "unknown entry key": (edit(lambda e: e[GATE].update(x=1)), ("malformed", GATE, SHARD)),
    "bad metadata": (edit(lambda e: e["__metadata__"].update(n=1)), ("__metadata__", SHARD)),
    "pickle only": (pickles, ("pytorch_model.bin", "never read")),
    "no weights": (nothing, ("no *.safetensors",)),
    "tensor in two files": (twice, ("stored twice", GATE, SHARD, "other.safetensors")),
    "directory for a shard": (folder_for_file, ("cannot read", SHARD, "Is a directory")),
    "link loop": (link_loop, ("cannot read", SHARD, "symbolic links")),
    "index names a missing file": (
        index_names_missing_file,
        (GATE, "model-00002-of-00002.safetensors", "no such file"),
    ),
    "index of another checkpoint": (index_of_another, ("model.layers.9.x", "does not")),
    "index lacks a tensor": (index_lacks_tensor, (GATE, SHARD, "does not list")),
    "index leaves the directory": (index_escapes, (GATE, "../other")),
    "index without map": (index_empty, ("no weight_map",)),
    "two index files": (two_indexes, ("two index files", "quant_model_weights")),
    "index not JSON": (index_not_json, ("model.safetensors.index.json", "not valid JSON")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_checkpoint(case: str, tmp_path: Path) -> None:
    breakage, words = BROKEN[case]
    micro.write(tmp_path)
    breakage(tmp_path)
    with pytest.raises(Glm5Error) as caught:
        CheckpointReader(tmp_path)
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*absent: No such file"):
        CheckpointReader(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"cannot read .*file: Not a directory"):
        CheckpointReader(tmp_path / "file")


def test_inventory_differences(tmp_path: Path) -> None:
    stored = micro.tensors(micro.config())
    wanted = expected_tensors(micro.config())

    def message(tensors: micro.Stored, folder: str) -> str:
        micro.write(tmp_path / folder, tensors)
        with (
            CheckpointReader(tmp_path / folder) as reader,
            pytest.raises(CheckpointError) as caught,
        ):
            reader.check_inventory(wanted)
        return caught.value.message

    assert f"lacks tensor {INDEXER}" in message(micro.without(stored, [INDEXER]), "missing")
    two = message(micro.without(stored, [INDEXER, GATE]), "two missing")
    assert f"lacks tensor {GATE} (and 1 more)" in two
    surplus = stored | {"model.layers.2.self_attn.indexer.wk.weight": stored[INDEXER]}
    extra = message(surplus, "extra")
    assert "tensor model.layers.2.self_attn.indexer.wk.weight" in extra
    assert SHARD in extra
    shape = message(stored | {GATE: (TensorSpec((12, 3), "BF16"), stored[GATE][1])}, "shape")
    assert "has shape [12, 3], expected [3, 12]" in shape
    assert SHARD in shape
    dtype = message(stored | {GATE: (TensorSpec((3, 12), "I8"), bytes(36))}, "dtype")
    assert "has dtype I8, expected BF16" in dtype


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_values_that_are_not_finite(tmp_path: Path, value: float, dtype: str) -> None:
    stored = micro.tensors(micro.config())
    values = np.zeros(36, np.float32)
    values[17] = value
    data = values.tobytes()
    if dtype == "BF16":
        data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    micro.write(tmp_path, stored | {GATE: (TensorSpec((3, 12), dtype), data)})
    with CheckpointReader(tmp_path) as reader:
        with pytest.raises(CheckpointError) as caught:
            reader.check_finite(GATE)
        reader.check_finite(INDEXER)
    assert f"{SHARD}: tensor {GATE} holds NaN or infinity, first at [1, 5]" in caught.value.message


@pytest.mark.parametrize(("code", "finite"), [(0x7E, True), (0x7F, False), (0xFF, False)])
def test_fp8_not_a_number(tmp_path: Path, code: int, finite: bool) -> None:
    stored = micro.tensors(micro.config())
    micro.write(tmp_path, stored | {GATE: (TensorSpec((3, 12), "F8_E4M3"), bytes([code] * 36))})
    with CheckpointReader(tmp_path) as reader:
        if finite:
            reader.check_finite(GATE)
        else:
            with pytest.raises(CheckpointError, match="holds NaN"):
                reader.check_finite(GATE)


def test_integers_are_finite_and_large_tensors_are_searched_to_the_end(tmp_path: Path) -> None:
    count = (1 << 22) + 5
    values = np.zeros(count, np.float32)
    values[-1] = np.nan
    stored = micro.tensors(micro.config())
    stored[GATE] = (TensorSpec((count,), "F32"), values.tobytes())
    stored[INDEXER] = (TensorSpec((4,), "I8"), b"\xff" * 4)
    micro.write(tmp_path, stored)
    with CheckpointReader(tmp_path) as reader:
        reader.check_finite(INDEXER)
        with pytest.raises(CheckpointError, match=rf"first at \[{count - 1}\]"):
            reader.check_finite(GATE)
