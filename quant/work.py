"""Write one planned file: convert its tensors one by one, then read the file back and compare."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from glm5_ascend.checkpoint import CheckpointReader, write_shard
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.backend import CPU, Backend
from glm5_ascend.quant.convert import convert
from glm5_ascend.quant.files import refusals
from glm5_ascend.quant.journal import FileRecord
from glm5_ascend.quant.plan import Shard
from glm5_ascend.quant.rotation import Orthogonal
from glm5_ascend.quant.solutions import NO_SOLUTIONS, Solutions

Advance = Callable[[int], None]

_READ_BYTES = 1 << 22
_METADATA = {"format": "pt"}


def write_file(
    reader: CheckpointReader,
    shard: Shard,
    matrices: Mapping[str, Orthogonal],
    directory: Path,
    advance: Advance,
    solutions: Solutions = NO_SOLUTIONS,
    backend: Backend = CPU,
) -> FileRecord:
    """Write ``shard`` into ``directory`` and return its size and SHA-256.

    Args:
        reader: the source checkpoint.
        shard: what to write.
        matrices: rotations by name.
        directory: the destination.
        advance: called with the bytes of each tensor once it is written.
        solutions: what a calibration found.
        backend: what carries out the arithmetic.

    Raises:
        CheckpointError: NaN or infinity in the source, or the file reads back differently.
    """
    written = hashlib.sha256()

    def data() -> Iterator[tuple[str, memoryview]]:
        for step in shard.steps:
            for name, chunk in convert(reader, step, matrices, solutions, backend):
                written.update(chunk)
                yield name, chunk
                advance(chunk.nbytes)

    path = directory / shard.file
    write_shard(path, shard.tensors(), data(), _METADATA)
    with refusals(f"read {path} back", "check the disk; then continue with --resume"):
        record, stored = _read_back(path)
    if stored != written.hexdigest():
        raise CheckpointError(
            f"{path} reads back differently from what was written",
            "check the disk; then continue with --resume",
        )
    return record


def _read_back(path: Path) -> tuple[FileRecord, str]:
    """Size and SHA-256 of the file, and the SHA-256 of the tensor data alone."""
    whole, data = hashlib.sha256(), hashlib.sha256()
    with open(path, "rb") as stream:
        prefix = stream.read(8)
        header = stream.read(int.from_bytes(prefix, "little"))
        whole.update(prefix + header)
        size = len(prefix) + len(header)
        while chunk := stream.read(_READ_BYTES):
            whole.update(chunk)
            data.update(chunk)
            size += len(chunk)
    return FileRecord(size, whole.hexdigest()), data.hexdigest()
