"""Loads the compiled kernels of an operator."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from glm5_ascend import env
from glm5_ascend.env import EnvironmentVariableError
from glm5_ascend.errors import BackendUnavailable, Glm5Error
from glm5_ascend.ops.native import isa
from glm5_ascend.ops.native.build import build

# Numbers of `enum DType` in g5.h.
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_OPS = Path(__file__).resolve().parent.parent
_SHARED = _OPS / "native" / "csrc"
_POOL = _SHARED / "pool.cpp"


class KernelError(Glm5Error, RuntimeError):
    """A CPU kernel did not do its work; there is no result."""


def library(operator: str, home: Path = _OPS) -> ctypes.CDLL:
    """Kernels of ``ops/<operator>/csrc``, for the instruction set and thread count of this moment.

    ``home`` is the folder to look in instead of ``ops``, for kernels that are no operator's.

    The first call may compile for some seconds (a note goes to stderr) and the result is kept in
    a cache; later calls take about two microseconds. Threads: ``GLM5_ASCEND_THREADS``, or as many
    as torch uses.

    Raises:
        BackendUnavailable: no compiler, a source that does not compile, no writable cache, or an
            instruction set in ``GLM5_ASCEND_CPU_ISA`` that this processor does not have.
    """
    _pool().g5_set_threads(threads())
    return _load(operator, isa.selected().name, home)


def threads() -> int:
    """How many threads the kernels use at most.

    Raises:
        EnvironmentVariableError: ``GLM5_ASCEND_THREADS`` is no number from 1 to 1024.
    """
    named = env.read("GLM5_ASCEND_THREADS")
    if not named:
        return torch.get_num_threads()
    if not named.isdecimal() or not 1 <= int(named) <= 1024:
        raise EnvironmentVariableError(
            f"GLM5_ASCEND_THREADS is {named!r}, which is no number from 1 to 1024",
            "unset it to use as many threads as torch does",
        )
    return int(named)


def check(code: int, what: str) -> None:
    """Raises :class:`KernelError` for the number that an entry point of ``what`` returned.

    1 is a defect of the caller (an argument that the kernel does not support), 2 too little memory.
    """
    if code == 2:
        raise KernelError(f"{what}: not enough memory", "use shorter sequences or fewer threads")
    if code != 0:
        raise KernelError(
            f"{what}: the CPU kernel refused its arguments (code {code})",
            "report this, and use backend 'reference' meanwhile",
        )


def address(tensor: Tensor | None) -> int:
    """What a ``void *`` parameter takes: the first element, null for None."""
    return 0 if tensor is None else tensor.data_ptr()


@cache
def _pool() -> ctypes.CDLL:
    path = build("pool", [_POOL], [], (), _SHARED)
    # Global, since the libraries of the operators look for its functions among what is loaded.
    return _open(path, ctypes.RTLD_GLOBAL)


@cache
def _load(operator: str, name: str, home: Path = _OPS) -> ctypes.CDLL:
    chosen = isa.INSTRUCTION_SETS[isa.NAMES.index(name)]
    own = home / operator / "csrc"
    others = [f"_{other}" for other in isa.NAMES if other != name]
    sources = [s for s in sorted(own.glob("*.cpp")) if not s.stem.endswith(tuple(others))]
    sources = [s for s in sources if s != _POOL]
    headers = sorted({*own.glob("*.h"), *_SHARED.glob("*.h")})
    flags = (*chosen.flags, f"-DG5_{name.upper()}=1")
    _pool()
    return _open(build(f"{_stem(home, operator)}-{name}", sources, headers, flags, _SHARED))


def _stem(home: Path, operator: str) -> str:
    """``quant/native`` and ``ops/native`` get names of their own."""
    return operator if home == _OPS else f"{home.name}-{operator}"


def _open(path: Path, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as error:
        raise BackendUnavailable(
            f"the compiled kernels cannot be loaded: {error}",
            "set GLM5_ASCEND_CACHE to a folder that may hold programs, or delete the file",
        ) from None
