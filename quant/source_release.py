"""``--delete-source``: the data of a source file goes once no output needs it any more.

A file whose every consumer is written, fsynced, read back and hashed is first noted in the journal
and then cut behind its header, which frees the disk at once even where a worker still has it
mapped. The header stays until the job is complete, so that an interrupted run can be planned again;
then the files are removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.files import refusals, sha256_of
from glm5_ascend.quant.identity import require_unchanged
from glm5_ascend.quant.journal import Journal
from glm5_ascend.quant.plan import Plan, Shard

_HINT = "run without --delete-source, or give a directory that holds this checkpoint alone"
_PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class Departure:
    """One source file, its size, and the number of output files that have to be complete first."""

    file: str
    nbytes: int
    after: int


def consumers(reader: CheckpointReader, plan: Plan) -> dict[str, set[str]]:
    """Name of each source file to the output files that are made from its tensors."""
    result: dict[str, set[str]] = {file.name: set() for file in reader.files()}
    for shard in plan.shards:
        for name in _read_by(reader, shard):
            result[reader.file_of(name).name].add(shard.file)
    return result


def departures(
    sizes: Mapping[str, int], waiting: Mapping[str, set[str]], shards: Iterable[Shard]
) -> list[Departure]:
    """When each source file goes, if ``shards`` are written in order.

    Args:
        sizes: bytes of each source file.
        waiting: from :func:`consumers`.
        shards: the outputs still to write.
    """
    position = {shard.file: number for number, shard in enumerate(shards, start=1)}
    found = [
        Departure(file, sizes[file], max((position.get(name, 0) for name in needed), default=0))
        for file, needed in waiting.items()
        if file in sizes
    ]
    return sorted(found, key=lambda item: (item.after, item.file))


def peak_growth(going: Iterable[Departure], shards: Sequence[Shard], workers: int) -> int:
    """Most bytes by which outputs exceed what has gone, with ``workers`` files under way."""
    sizes = [shard.nbytes for shard in shards]
    freed = [0] * (len(sizes) + 1)
    for item in going:
        freed[item.after] += item.nbytes
    most = gone = 0
    for number in range(len(sizes)):
        gone += freed[number]
        most = max(most, sum(sizes[: number + workers]) - gone)
    return most


def data_bytes(reader: CheckpointReader) -> dict[str, int]:
    """Bytes of tensors in each source file."""
    sizes = dict.fromkeys((file.name for file in reader.files()), 0)
    for name in reader.names():
        sizes[reader.file_of(name).name] += reader.nbytes(name)
    return sizes


def shares_disk(source: Path, destination: Path) -> bool:
    """Whether what goes from one makes room for the other; neither has to exist yet."""
    return _device(source) == _device(destination)


def _device(path: Path) -> int:
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return existing.stat().st_dev


def require_own_directory(source: Path) -> None:
    """Refuse a source whose files may be someone else's: links, or names of one shared file.

    Raises:
        CheckpointError: naming the directory or file.
    """
    if source.is_symlink():
        raise CheckpointError(f"--delete-source: {source} is a symbolic link", _HINT)
    if not os.access(source, os.W_OK | os.X_OK):
        raise CheckpointError(f"--delete-source: {source} may not be written to", _HINT)
    for file in sorted(source.glob("*.safetensors")):
        status = os.lstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"--delete-source: {file} is not a regular file", _HINT)
        if status.st_nlink > 1:
            raise CheckpointError(f"--delete-source: {file} has another name elsewhere", _HINT)
        if not os.access(file, os.W_OK):
            raise CheckpointError(f"--delete-source: {file} may not be written to", _HINT)


def require_data(reader: CheckpointReader, released: Mapping[str, object]) -> None:
    """Refuse a source file without data unless the journal says that this job has cut it."""
    for file in reader.files():
        if file.name not in released and is_cut(file):
            raise CheckpointError(
                f"{file} is truncated: it ends with its header",
                "download or copy this file again",
            )


def is_cut(file: Path) -> bool:
    """Whether a file of at least one tensor ends with its header."""
    size = file.stat().st_size
    return size == _header_end(file) and size > 0


class SourceRelease:
    """Cuts source files as the outputs that need them are completed."""

    def __init__(
        self, source: Path, waiting: Mapping[str, set[str]], journal: Journal, *, hash_first: bool
    ) -> None:
        """Begin with what an interrupted run had noted.

        Args:
            source: the checkpoint.
            waiting: from :func:`consumers`.
            journal: of the job; what is complete in it counts.
            hash_first: note a file's SHA-256 before it is cut.
        """
        self._source, self._journal, self._hash = source, journal, hash_first
        self._waiting = {
            file: needed - set(journal.done)
            for file, needed in waiting.items()
            if file not in journal.released
        }

    def catch_up(self) -> None:
        """Cut what is noted but was not cut yet, and what needs nothing more."""
        for file in self._journal.released:
            _cut(self._source / file)
        self._release_idle()

    def completed(self, output: str) -> None:
        """Note that an output file is complete; its record is in the journal."""
        for needed in self._waiting.values():
            needed.discard(output)
        self._release_idle()

    def _release_idle(self) -> None:
        for file in [file for file, needed in self._waiting.items() if not needed]:
            del self._waiting[file]
            path = self._source / file
            require_unchanged(self._source, self._journal.job, only=(file,))
            digest = sha256_of(path, lambda nbytes: None) if self._hash else ""
            self._journal.release(file, digest)
            _cut(path)


def remove(source: Path, released: Iterable[str]) -> None:
    """Remove files that were cut; those that are gone already are no error."""
    for name in released:
        with refusals(f"remove {source / name}", "remove it yourself"):
            (source / name).unlink(missing_ok=True)


def refuse_lost(journal: Journal, damaged: Sequence[str], waiting: Mapping[str, set[str]]) -> None:
    """Refuse to go on where an output has to be written again and its source has gone.

    Raises:
        CheckpointError: naming both.
    """
    for output in damaged:
        for file in journal.released:
            if output in waiting.get(file, ()):
                raise CheckpointError(
                    f"{journal.directory / output} is damaged, and {file}, from which it was made,"
                    " has been deleted",
                    "download the source again and start anew with --overwrite",
                )


def _read_by(reader: CheckpointReader, shard: Shard) -> Iterator[str]:
    for step in shard.steps:
        for name in (step.source, *step.fold.norms):
            yield name
            if f"{name}_scale_inv" in reader:
                yield f"{name}_scale_inv"


def _header_end(file: Path) -> int:
    with open(file, "rb") as stream:
        return _PREFIX_BYTES + int.from_bytes(stream.read(_PREFIX_BYTES), "little")


def _cut(file: Path) -> None:
    with refusals(f"cut {file}", "check its permissions; then continue with --resume"):
        if not file.exists():
            return
        with open(file, "rb+") as stream:
            stream.truncate(_header_end(file))
            os.fsync(stream.fileno())
