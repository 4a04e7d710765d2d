"""Calls of kernels as data: made here through ctypes, or under an emulator by driver.cpp."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Out:
    """A buffer that the kernel writes."""

    dtype: Any
    shape: tuple[int, ...]

    def poisoned(self) -> Array:
        bytes_ = np.full(max(1, self.size), 0xA5, np.uint8)[: self.size]
        return bytes_.view(self.dtype).reshape(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


Argument = int | None | Array | Out


@dataclass(frozen=True)
class Call:
    """``entry`` of a library with numbers, null pointers, arrays (read only) and results."""

    entry: str
    arguments: tuple[Argument, ...]


def here(library: ctypes.CDLL, call: Call) -> list[Array]:
    """The results of a call in this process."""
    words: list[Any] = []
    results = []
    for argument in call.arguments:
        if isinstance(argument, Out):
            results.append(argument.poisoned())
            words.append(ctypes.c_void_p(results[-1].ctypes.data))
        elif isinstance(argument, np.ndarray):
            words.append(ctypes.c_void_p(argument.ctypes.data))
        else:
            words.append(ctypes.c_void_p(None) if argument is None else ctypes.c_int64(argument))
    # An object of its own: the argument types of the package's are set by cpu.py.
    code = library[call.entry](*words)
    assert code == 0, f"{call.entry} returned {code}"
    return results


def emulated(
    command: Sequence[str],
    entries: Sequence[str],
    calls: Sequence[Call],
    folder: Path,
    threads: int,
) -> list[list[Array]]:
    """The results of all calls, made by ``command`` (emulator and driver)."""
    given, returned = folder / "calls.bin", folder / "results.bin"
    with given.open("wb") as file:
        file.write(struct.pack("<qq", threads, len(calls)))
        for call in calls:
            file.write(struct.pack("<qq", entries.index(call.entry), len(call.arguments)))
            file.write(b"".join(map(_packed, call.arguments)))
    done = subprocess.run(
        [*command, str(given), str(returned)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    data = memoryview(returned.read_bytes())
    results = []
    for call in calls:
        (code,) = struct.unpack_from("<q", data)
        data = data[8:]
        assert code == 0, f"{call.entry} returned {code}"
        results.append([])
        for out in (a for a in call.arguments if isinstance(a, Out)):
            values = np.frombuffer(bytearray(data[: out.size]), out.dtype).reshape(out.shape)
            results[-1].append(values)
            data = data[out.size :]
    assert not data
    return results


def _packed(argument: Argument) -> bytes:
    if isinstance(argument, Out):
        return struct.pack("<qq", 2, argument.size)
    if isinstance(argument, np.ndarray):
        data = np.ascontiguousarray(argument).tobytes()
        return struct.pack("<qq", 1, len(data)) + data
    return struct.pack("<qq", 3, 0) if argument is None else struct.pack("<qq", 0, argument)
