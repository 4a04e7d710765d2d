"""Carry out a repair so that it can be undone: originals first, atomic renames, a journal.

``repair_backup/`` in the checkpoint holds the originals of small files, the header and the replaced
tensors of every file of weights that is written again, and the names of files that are new. It is
complete before anything changes, and every step can be repeated: a killed repair is continued by
the same command, and undone like a finished one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from glm5_ascend.checkpoint import TensorSpec, write_shard
from glm5_ascend.checkpoint_header import StoredTensor, read_header
from glm5_ascend.checkpoint_writer import write_bytes, write_pieces
from glm5_ascend.errors import CheckpointError
from glm5_ascend.files import open_regular
from glm5_ascend.quant.files import read_bytes, refusals
from glm5_ascend.quant.repair_draft import NewTensor

BACKUP = "repair_backup"
JOURNAL = "journal.json"
_HINT = "check the directory's permissions"
_COPY_BYTES = 1 << 24

Advance = Callable[[int], None]


class Backup:
    """The originals of one directory.

    Attributes:
        directory: the checkpoint.
        folder: where the originals are.
        small: names of small files whose originals are kept.
        created: names of files that were not there before.
        rewritten: names of files of weights that were written again.
        finished: whether the last repair came to its end.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.folder = directory / BACKUP
        self.small: list[str] = []
        self.created: list[str] = []
        self.rewritten: list[str] = []
        self.finished = False
        if (self.folder / JOURNAL).exists():
            document = json.loads(read_bytes(self.folder / JOURNAL, _HINT))
            self.small, self.created = document["small"], document["created"]
            self.rewritten, self.finished = document["rewritten"], document["finished"]

    @property
    def exists(self) -> bool:
        """Whether there is anything to undo."""
        return (self.folder / JOURNAL).exists()

    def keep_small(self, name: str) -> None:
        """Keep the original of a small file, or note that it is new; the first time counts."""
        if name in self.small or name in self.created:
            return
        self._make()
        if (self.directory / name).exists():
            write_bytes(self.folder / name, read_bytes(self.directory / name, _HINT))
            self.small.append(name)
        else:
            self.created.append(name)

    def keep_weights(self, file: Path, names: list[str]) -> None:
        """Keep header and the named tensors of a file of weights."""
        self._make()
        tensors, metadata = read_header(file)
        header = _header_bytes(file)
        if file.name in self.rewritten:
            return
        write_bytes(self.folder / f"{file.name}.header", header)
        kept = {name: tensors[name].spec for name in names}
        data = ((name, _read(tensors[name])) for name in names)
        write_shard(self.folder / f"{file.name}.tensors", kept, data, metadata)
        self.rewritten.append(file.name)

    def save(self, *, finished: bool) -> None:
        """Write the journal; what it names is safe before anything is changed."""
        self._make()
        self.finished = finished
        document = {
            "small": self.small,
            "created": self.created,
            "rewritten": self.rewritten,
            "finished": self.finished,
        }
        write_bytes(self.folder / JOURNAL, json.dumps(document, indent=1).encode() + b"\n")

    def undo(self, advance: Advance) -> None:
        """Put everything back as it was, byte for byte, and drop the backup."""
        for name in self.rewritten:
            self._restore_weights(name, advance)
        for name in self.small:
            write_bytes(self.directory / name, read_bytes(self.folder / name, _HINT))
        with refusals(f"remove what the repair made in {self.directory}", _HINT):
            for name in self.created:
                (self.directory / name).unlink(missing_ok=True)
            # Without its journal a backup is no more than left-over files.
            (self.folder / JOURNAL).unlink()
            shutil.rmtree(self.folder)

    def _make(self) -> None:
        with refusals(f"create {self.folder}", _HINT):
            self.folder.mkdir(exist_ok=True)

    def _restore_weights(self, name: str, advance: Advance) -> None:
        file = self.directory / name
        header = read_bytes(self.folder / f"{name}.header", _HINT)
        if _header_bytes(file) == header and _same_tensors(file, self.folder / f"{name}.tensors"):
            return
        originals, _ = read_header(self.folder / f"{name}.tensors")
        now, _ = read_header(file)

        def pieces() -> Iterator[bytes]:
            yield header
            for tensor in _layout(header):
                yield from _chunks(originals.get(tensor, now.get(tensor)), advance)

        write_pieces(file, pieces())


def rewrite(file: Path, replaced: Mapping[str, NewTensor], advance: Advance) -> None:
    """Write a file of weights again with other tensors in the places of the old ones."""
    tensors, metadata = read_header(file)
    specs: dict[str, TensorSpec] = {
        name: replaced[name].spec if name in replaced else tensor.spec
        for name, tensor in tensors.items()
    }

    def data() -> Iterator[tuple[str, memoryview | bytes]]:
        for name, tensor in tensors.items():
            chunk = replaced[name].data() if name in replaced else _read(tensor)
            yield name, chunk
            advance(tensor.nbytes)

    write_shard(file, specs, data(), metadata)


def add(file: Path, tensors: Mapping[str, NewTensor], advance: Advance) -> None:
    """Write new tensors into a file of their own."""

    def data() -> Iterator[tuple[str, memoryview]]:
        for name, tensor in tensors.items():
            chunk = tensor.data()
            yield name, chunk
            advance(chunk.nbytes)

    write_shard(file, {n: t.spec for n, t in tensors.items()}, data(), {"format": "pt"})


def _read(tensor: StoredTensor) -> bytes:
    return b"".join(_chunks(tensor, lambda count: None))


def _chunks(tensor: StoredTensor | None, advance: Advance) -> Iterator[bytes]:
    if tensor is None:
        raise CheckpointError(
            "a tensor of the original file is gone", "the backup does not fit these files any more"
        )
    with open_regular(tensor.file) as stream:
        stream.seek(tensor.offset)
        left = tensor.nbytes
        while left:
            chunk = stream.read(min(left, _COPY_BYTES))
            if not chunk:
                raise CheckpointError(f"{tensor.file} is cut off", "copy the file again")
            yield chunk
            left -= len(chunk)
            advance(len(chunk))


def _header_bytes(file: Path) -> bytes:
    with open_regular(file) as stream:
        prefix = stream.read(8)
        return prefix + stream.read(int.from_bytes(prefix, "little"))


def _layout(header: bytes) -> list[str]:
    """Names in the order of their data."""
    entries = json.loads(header[8:])
    names = [name for name in entries if name != "__metadata__"]
    return sorted(names, key=lambda name: tuple(entries[name]["data_offsets"]))


def _same_tensors(file: Path, kept: Path) -> bool:
    now, _ = read_header(file)
    return all(_read(now[n]) == _read(tensor) for n, tensor in read_header(kept)[0].items())
