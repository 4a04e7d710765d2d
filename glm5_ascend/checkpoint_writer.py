"""Streaming, atomic writing of safetensors and text files, and the check for disk space.

A file appears under its name only when every byte of it is on disk: temporary name, fsync, rename,
fsync of the directory. A killed run therefore leaves complete files and ``.part`` files, which no
reader looks at and the next run overwrites.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from glm5_ascend.checkpoint_header import tensor_bytes
from glm5_ascend.checkpoint_inventory import TensorSpec
from glm5_ascend.console import format_bytes
from glm5_ascend.errors import CheckpointError, DoesNotFit

Chunk = bytes | bytearray | memoryview


def write_shard(
    path: Path,
    tensors: Mapping[str, TensorSpec],
    data: Iterable[tuple[str, Chunk]],
    metadata: Mapping[str, str],
) -> None:
    """Write one safetensors file, tensor by tensor, holding one tensor in memory at a time.

    Args:
        path: final name; its directory must exist. Replaced if present.
        tensors: names, shapes and dtypes in file order; equal input gives equal bytes.
        data: name and little-endian bytes of each tensor, in the same order.
        metadata: strings for ``__metadata__``; may be empty.

    Raises:
        CheckpointError: the file cannot be written.
        DoesNotFit: the disk is full.
        ValueError: ``data`` does not match ``tensors`` (a defect of the caller).
    """
    header = _header(tensors, metadata)

    def body(stream: BinaryIO) -> None:
        stream.write(header)
        expected = iter(tensors.items())
        for name, chunk in data:
            wanted, spec = next(expected, ("end of file", None))
            view = memoryview(chunk).cast("B")
            if spec is None or name != wanted or view.nbytes != tensor_bytes(spec):
                raise ValueError(
                    f"{path.name}: got {name} ({view.nbytes} bytes), expected {wanted}"
                )
            stream.write(view)
        missing = next(expected, None)
        if missing is not None:
            raise ValueError(f"{path.name}: no data for {missing[0]}")

    _write(path, body)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file with the same all-or-nothing discipline.

    Raises:
        CheckpointError: the file cannot be written.
        DoesNotFit: the disk is full.
    """

    write_pieces(path, (data,))


def write_pieces(path: Path, pieces: Iterable[Chunk]) -> None:
    """:func:`write_bytes` of a large file, piece by piece."""

    def body(stream: BinaryIO) -> None:
        for piece in pieces:
            stream.write(piece)

    _write(path, body)


def write_text(path: Path, text: str) -> None:
    """:func:`write_bytes` of a text in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def require_free_space(directory: Path, nbytes: int) -> None:
    """Raise ``DoesNotFit`` unless the file system of ``directory`` has ``nbytes`` free.

    ``directory`` need not exist yet; its nearest existing parent decides.
    """
    existing = directory.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < nbytes:
        raise DoesNotFit(
            f"{directory} needs {format_bytes(nbytes)}; {existing} has {format_bytes(free)} free",
            "free some space or choose a destination on a larger disk",
        )


def _header(tensors: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, spec in tensors.items():
        end = offset + tensor_bytes(spec)
        entries[name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    # The data begins at a multiple of 8 bytes so that a mapped tensor of any dtype is aligned.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write(path: Path, body: Callable[[BinaryIO], None]) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as stream:
            try:
                os.fchmod(stream.fileno(), 0o644)
                body(stream)
                stream.flush()
                os.fsync(stream.fileno())
            except BaseException:
                part.unlink()
                raise
        os.replace(part, path)
        _sync_directory(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DoesNotFit(
                f"the disk is full while writing {path}", "free some space and resume"
            ) from error
        raise CheckpointError(
            f"cannot write {path}: {error.strerror or error}",
            "check that the destination is a directory that you may write to",
        ) from error


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
