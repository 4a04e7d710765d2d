"""Standard streams that cannot end a job: closed, broken, full or of a narrow encoding.

A reader of stderr that goes away (``2>&1 | head``) costs its lines and nothing else. A reader of
stdout that goes away has read enough: the exit code stays that of the work. Any other failure to
write a result, a full disk for one, is an error with exit code 1.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

from glm5_ascend.errors import Glm5Error

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["guard_standard_streams"]


class _Output(io.RawIOBase):
    """A file descriptor that stops passing data on once it fails."""

    def __init__(self, descriptor: int, name: str, *, essential: bool) -> None:
        self._descriptor = descriptor
        self._name = name
        self._essential = essential
        self._gone = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        while not self._gone:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except BrokenPipeError:
                self._gone = True
            except OSError as error:
                self._gone = True
                if self._essential:
                    raise Glm5Error(
                        f"cannot write the result to {self._name}: {error.strerror}",
                        "the work itself is done; print its result to a place with space",
                    ) from error
        return size


def guard_standard_streams() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` of this process.

    Descriptors 0 to 2 that the caller closed are occupied first: a file opened later would get
    such a number, and lines meant for people would end up in it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _guarded(sys.stdout, 1, "stdout", essential=True)
    sys.stderr = _guarded(sys.stderr, 2, "stderr", essential=False)


def _guarded(stream: TextIO | None, descriptor: int, name: str, *, essential: bool) -> TextIO:
    if stream is not None:
        stream.flush()
    encoding = "utf-8" if stream is None else stream.encoding
    output = _Output(descriptor, name, essential=essential)
    return io.TextIOWrapper(
        io.BufferedWriter(output),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=True,
        write_through=True,
    )
