"""Kernels compiled for ARM and run under an emulator."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from glm5_ascend import ops
from glm5_ascend.ops.native import compiler, isa

COMPILER = "aarch64-linux-gnu-g++"
_OPS = Path(ops.__path__[0])


def emulator() -> str:
    """Path of the emulator; skips the test where it or the cross compiler is missing."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no cross compiler ({COMPILER}): the ARM kernels are not tested here")
    for name in ("qemu-aarch64", "qemu-aarch64-static"):
        if path := shutil.which(name):
            return path
    pytest.skip("no emulator (qemu-aarch64): the ARM kernels are not tested here")


def driver(
    operator: str, entries: Sequence[str], name: str, folder: Path, home: Path = _OPS
) -> Path:
    """An ARM program that makes calls of ``entries``, for instruction set ``name``."""
    chosen = isa.INSTRUCTION_SETS[isa.NAMES.index(name)]
    sources = [
        Path(__file__).parent / "driver.cpp",
        _OPS / "native" / "csrc" / "pool.cpp",
        *sorted((home / operator / "csrc").glob("*.cpp")),
    ]
    target = folder / f"{operator}-{name}"
    words = [
        *(COMPILER, *compiler.FLAGS, "-static", "-pthread", *chosen.flags),
        f"-DG5_{name.upper()}=1",
        "-DENTRIES=" + "".join(f"ENTRY({entry})" for entry in entries),
        *(f"-I{_OPS / 'native' / 'csrc'}", *map(str, sources), "-o", str(target)),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return target
