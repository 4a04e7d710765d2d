"""Opening files of the user: never a pipe or a device, and every failure an error that says why."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from glm5_ascend.errors import CheckpointError, Glm5Error

# The journal of glm5_ascend.quant, which stays until a quantisation is finished.
JOURNAL_FILE = "quantize_journal.json"
# What vllm-ascend reads to learn the scheme of every tensor.
DESCRIPTION_FILE = "quant_model_description.json"


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; ``OSError`` otherwise. Never waits, as a FIFO would."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_text(path: Path, most: int, hint: str) -> str:
    """A UTF-8 text of the user of at most ``most`` bytes; pipes are read, as from ``<(...)``.

    Raises:
        Glm5Error: longer, or no UTF-8; with this hint.
        OSError: it cannot be opened.
    """
    try:
        with open(path, "rb") as stream:
            raw = stream.read(most + 1)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return decode(raw, str(path), most, hint)


def decode(raw: bytes, name: str, most: int, hint: str) -> str:
    """What ``read_text`` does with the bytes of a file ``name``."""
    if len(raw) > most:
        raise Glm5Error(f"{name} is larger than {most >> 10} KiB", hint)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Glm5Error(f"{name} is not UTF-8 text", hint) from error


def refuse_unwritable(*paths: Path) -> None:
    """Raise ``OSError`` for an output that cannot be opened, before any work; changes none.

    Folders that are missing are no hindrance: :func:`make_folder` makes them when it is written.
    """
    for path in paths:
        if path.exists() and not path.is_file() and not path.is_dir():
            continue  # A pipe or a device: opening it could wait, or be seen.
        absent = not path.exists()
        made: list[Path] = []
        try:
            for folder in reversed([f for f in path.parents if not f.exists()]):
                folder.mkdir()
                made.append(folder)
            with open(path, "ab"):
                pass
            if absent:
                path.unlink()
        finally:
            for folder in reversed(made):
                folder.rmdir()


def refuse_inputs(outputs: Iterable[Path], *inputs: Path) -> None:
    """Raise ``Glm5Error`` for an output that is one of the inputs, under whatever name."""
    for output in outputs:
        for given in inputs:
            if output.exists() and given.exists() and output.samefile(given):
                raise Glm5Error(f"{output} is read and would be replaced", "name another output")


def make_folder(output: Path) -> None:
    """Make the folders above an output that are missing, as every option for an output does."""
    output.parent.mkdir(parents=True, exist_ok=True)


def file_size(path: Path) -> int:
    """Bytes of a file; ``CheckpointError`` if it cannot be looked at, e.g. a dangling link."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}",
            "copy the file again, and check that you may read it and its directory",
        ) from error


def present(path: Path) -> bool:
    """Whether a file is there; ``CheckpointError`` if the directory does not let us know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(
            f"cannot look at {path}: {error.strerror}",
            "check that you may read the directory and enter it",
        ) from error
    return True


def refuse_unfinished(directory: Path) -> None:
    """Raise ``CheckpointError`` for the output of a quantisation that has not finished."""
    try:
        (directory / JOURNAL_FILE).stat()
    except OSError:
        # Absent; or the directory cannot be read, which its reader reports in better words.
        return
    else:
        raise CheckpointError(
            f"{directory} is the output of a quantisation that has not finished",
            "repeat that `glm5-ascend quantize` command with --resume",
        )
