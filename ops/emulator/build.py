"""Shared libraries of kernels and the emulator's runtime.

The runtime is compiled once and linked into every library, so that libraries share no state.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from glm5_ascend.ops.emulator.errors import KernelSourceError
from glm5_ascend.ops.emulator.objects import compiled
from glm5_ascend.ops.native import compiler, isa
from glm5_ascend.ops.native.build import cache_folder, locked, processors, unfinished

INCLUDE = Path(__file__).resolve().parent / "include"
CSRC = Path(__file__).resolve().parent / "csrc"
CORES = ("mix12", "vector", "cube", "mix01")

# Products and sums stay apart, so that results do not depend on the processor.
_FLAGS = ("-std=c++20", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", f"-I{INCLUDE}")
# The handlers of csrc/undefined.cpp take the place of the sanitiser's library.
_SANITIZE = ("-fsanitize=undefined", "-fno-sanitize=vptr")


@dataclass(frozen=True, slots=True)
class Kernel:
    """``function`` is C++: a name, with its namespace and template arguments.

    ``core``: "mix12" (an AIC and two AIV per block), "vector", "cube", or "mix01" (one AIV per
    block, with cross-core synchronisation).
    """

    name: str
    function: str
    core: str


@dataclass(frozen=True)
class Library:
    """``seconds``: how long compiling took, 0 where the cache had everything."""

    path: Path
    seconds: float

    @cached_property
    def handle(self) -> ctypes.CDLL:
        """The loaded library."""
        handle = ctypes.CDLL(str(self.path))
        handle.emu_describe.restype = ctypes.c_void_p
        handle.emu_launch.restype = ctypes.c_void_p
        handle.emu_free.argtypes = [ctypes.c_void_p]
        handle.emu_free.restype = None
        handle.emu_stop.restype = None
        return handle

    @cached_property
    def _entries(self) -> list[dict[str, Any]]:
        text = self.handle.emu_describe()
        try:
            rows: list[dict[str, Any]] = json.loads(ctypes.string_at(text))
        finally:
            self.handle.emu_free(text)
        return rows

    @property
    def cores(self) -> dict[str, str]:
        """The type of each kernel, one of ``CORES``."""
        return {row["name"]: row["core"] for row in self._entries}

    @cached_property
    def signatures(self) -> dict[str, tuple[int, ...]]:
        """Bytes of each argument of each kernel, 0 for a pointer to GM; in the order of entries."""
        return {row["name"]: tuple(row["sizes"]) for row in self._entries}


def build(
    source: Path,
    kernels: Sequence[Kernel],
    *,
    defines: Sequence[str] = (),
    sanitize: bool = False,
) -> Library:
    """Compile the kernels of one source file for the emulator.

    Args:
        source: file that defines or includes the kernel functions.
        kernels: entries of the library.
        defines: macros, ``NAME`` or ``NAME=VALUE``.
        sanitize: check the kernel's own C++ for undefined behaviour.

    Raises:
        KernelSourceError: the file is missing, does not compile, or has ``"`` in its path.
        BackendUnavailable: no compiler, or no writable cache.
    """
    if not source.is_file():
        raise KernelSourceError(f"{source} is no file", "name the kernel's source file")
    whole = str(source.resolve())
    if any(character in whole for character in '"\n'):
        # An #include has no way to write them.
        raise KernelSourceError(
            f"the path {whole!r} holds a quotation mark or line break",
            "move the kernel to a folder without one",
        )
    started = time.monotonic()
    tool, folder = compiler.find_for_emulator(), cache_folder()
    base = (*_FLAGS, *isa.selected().flags)
    extra = (*(f"-D{define}" for define in defines), *(_SANITIZE if sanitize else ()))
    shim = _shim(source.resolve(), kernels, folder)
    with ThreadPoolExecutor(processors()) as pool:
        kernel = pool.submit(compiled, tool, shim, (*base, *extra), folder)
        runtime = [
            pool.submit(compiled, tool, file, base, folder) for file in sorted(CSRC.glob("*.cpp"))
        ]
        objects = [kernel.result(), *(each.result() for each in runtime)]
    name = sha256(" ".join(sorted(o.name for o in objects)).encode()).hexdigest()[:16]
    library = folder / f"emulator-{source.stem}-{name}.so"
    fresh = not library.exists()
    if fresh:
        with locked(library.with_suffix(".lock"), folder), unfinished(library) as part:
            tool.link(objects, part)
    return Library(library, time.monotonic() - started if fresh else 0.0)


def _shim(source: Path, kernels: Sequence[Kernel], folder: Path) -> Path:
    rows = "".join(
        f'    EMU_ENTRY("{kernel.name}", {kernel.core.upper()}, {kernel.function}),\n'
        for kernel in kernels
    )
    text = (
        f'#include "{source}"\n#include "emu/system.h"\n'
        f'extern "C" const emu::Entry emu_entries[] = {{\n{rows}}};\n'
        f'extern "C" const int emu_entry_count = {len(kernels)};\n'
    )
    path = folder / f"emulator-{source.stem}-{sha256(text.encode()).hexdigest()[:16]}.cpp"
    if not path.exists():
        with unfinished(path) as part:
            part.write_text(text)
    return path
