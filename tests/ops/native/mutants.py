"""Kernels compiled from sources with one deliberate mistake."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

from glm5_ascend import ops
from glm5_ascend.ops.native import compiler, isa, library

_OPS = Path(ops.__path__[0])


def mutant(
    operator: str,
    file: str,
    right: str,
    wrong: str,
    name: str,
    folder: Path,
    *,
    home: Path = _OPS,
    optimise: str = "-O0",
) -> ctypes.CDLL:
    """The library of ``operator`` for instruction set ``name``, with ``right`` made ``wrong``.

    Compiled without optimisation, which is quicker than the tests it is for.
    """
    library(operator, home)  # threads and scratch memory are found among what is loaded
    sources = folder / "csrc"
    shutil.copytree(home / operator / "csrc", sources)
    text = (sources / file).read_text()
    assert text.count(right) == 1, f"{file} holds {right!r} {text.count(right)} times"
    (sources / file).write_text(text.replace(right, wrong))
    chosen = isa.INSTRUCTION_SETS[isa.NAMES.index(name)]
    flags = (*chosen.flags, f"-DG5_{name.upper()}=1", optimise)
    tool = compiler.find()
    objects = []
    for source in sorted(sources.glob("*.cpp")):
        objects.append(folder / f"{source.stem}.o")
        tool.compile(source, objects[-1], flags, _OPS / "native" / "csrc")
    tool.link(objects, folder / "mutant.so")
    return ctypes.CDLL(str(folder / "mutant.so"))
