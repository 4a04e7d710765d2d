"""The C++ compiler: finding it, its command lines, and what it says when it fails."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from glm5_ascend.errors import BackendUnavailable

# No -ffast-math: infinities and NaN have a meaning here, and sums keep their order.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
)
# Entry points of pool.cpp are found in the library that was loaded before.
_LINK = ("-shared", "-pthread")
_CANDIDATES = ("g++", "c++", "clang++")


@dataclass(frozen=True, slots=True)
class Compiler:
    """``command`` may hold more than one word (``ccache g++``); ``version`` is its first line."""

    command: tuple[str, ...]
    version: str

    def compile(self, source: Path, target: Path, flags: tuple[str, ...], include: Path) -> None:
        """Object file ``target`` of ``source``.

        Raises:
            BackendUnavailable: the compiler reports an error.
        """
        words = (*FLAGS, *flags, f"-I{include}", "-pthread", "-c", str(source), "-o", str(target))
        self._run(words, f"{source.parent.parent.name}/csrc/{source.name}")

    def link(self, objects: list[Path], target: Path) -> None:
        """Shared library ``target`` of ``objects``."""
        extra = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()
        self._run((*_LINK, *extra, *map(str, objects), "-o", str(target)), target.name)

    def check_wrote(self, target: Path) -> None:
        """Check that a call that ended well made its file.

        Raises:
            BackendUnavailable: there is no such file.
        """
        if not target.is_file():
            raise BackendUnavailable(
                f"{shlex.join(self.command)} ends with exit code 0 but wrote no {target.name}",
                "set CXX to a C++ compiler, or unset it to take g++",
            )

    def _run(self, words: tuple[str, ...], what: str) -> None:
        command = (*self.command, *words)
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},
        )
        target = Path(words[words.index("-o") + 1])
        if done.returncode == 0:
            self.check_wrote(target)
            return
        log = target.with_suffix(".log")
        log.write_text(f"{shlex.join(command)}\n\n{done.stdout}{done.stderr}")
        errors = [line for line in done.stderr.splitlines() if "error: " in line]
        first = errors[0].rpartition("/")[2] if errors else f"exit code {done.returncode}"
        raise BackendUnavailable(
            f"{self.command[-1]} cannot compile {what}: {first.strip()}",
            f"read {log}; a newer compiler (CXX) or a lesser GLM5_ASCEND_CPU_ISA may do, or choose "
            "backend 'reference' (--op-backend reference)",
        )


@cache
def _version(command: tuple[str, ...]) -> str | None:
    try:
        done = subprocess.run(
            (*command, "--version"), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except OSError:
        return None
    return done.stdout.partition("\n")[0] if done.returncode == 0 else None


def find(
    what: str = "the CPU kernels",
    remedy: str = "install g++, or choose backend 'reference' (--op-backend reference)",
) -> Compiler:
    """The compiler of ``CXX``, or the first one on the path.

    Args:
        what: cannot be compiled without it.
        remedy: hint where there is none.

    Raises:
        BackendUnavailable: there is none, or the one that CXX names does not run.
    """
    wanted = os.environ.get("CXX", "")
    try:
        named = shlex.split(wanted)
    except ValueError as error:
        raise BackendUnavailable(
            f"CXX is {wanted!r}, which is no command: {str(error).lower()}",
            "correct it, or unset it to take g++",
        ) from None
    candidates = [tuple(named)] if named else [(c,) for c in _CANDIDATES if shutil.which(c)]
    for command in candidates:
        version = _version(command)
        if version is not None:
            return Compiler(command, version)
    reason = f"CXX is {shlex.join(named)!r}, which does not run" if named else "no C++ compiler"
    raise BackendUnavailable(
        f"{what} cannot be compiled: {reason}",
        remedy,
    )


def find_for_emulator() -> Compiler:
    """As :func:`find`; without a compiler no other backend stands in for the emulator."""
    return find("kernels for the emulator", "install g++, or set CXX to a C++ compiler")
