"""Small files and directories of a run; what the system refuses becomes an error of the user's."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glm5_ascend.console import Advance
from glm5_ascend.errors import CheckpointError, DoesNotFit

_READ_BYTES = 1 << 22


@contextmanager
def refusals(action: str, hint: str, full: str = "free some space and resume") -> Iterator[None]:
    """Turn an ``OSError`` into ``CheckpointError("cannot <action>: <reason>", hint)``.

    A full disk becomes ``DoesNotFit`` with the hint ``full``.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DoesNotFit(f"cannot {action}: the disk is full", full) from error
        reason = error.strerror or str(error)
        raise CheckpointError(f"cannot {action}: {reason}", hint) from error


def names_in(directory: Path, hint: str) -> set[str]:
    """Names of the entries of a directory; empty where there is none.

    Raises:
        CheckpointError: it is a file, a broken link, or may not be listed.
    """
    try:
        with refusals(f"read {directory}", hint):
            return set(os.listdir(directory))
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError) and not os.path.lexists(directory):
            return set()
        raise


def read_bytes(path: Path, hint: str) -> bytes:
    """Content of a regular file; anything else (a pipe would block) is a ``CheckpointError``."""
    with refusals(f"read {path}", hint):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise CheckpointError(f"cannot read {path}: it is not a regular file", hint)
        return path.read_bytes()


def sha256_of(path: Path, advance: Advance) -> str:
    """SHA-256 of a file in hexadecimal; ``advance`` is called with the bytes read."""
    state = hashlib.sha256()
    with refusals(f"read {path}", "check the disk"), open(path, "rb") as stream:
        while chunk := stream.read(_READ_BYTES):
            state.update(chunk)
            advance(len(chunk))
    return state.hexdigest()
