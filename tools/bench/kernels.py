"""The project's selection as a function of its own, which the operators do not offer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops.native import check, isa, library
from glm5_ascend.ops.native.build import build

_SOURCE = Path(__file__).parent / "csrc" / "top_k.cpp"


def top_k(scores: Tensor, count: int) -> Callable[[], Tensor]:
    """A function that returns int32 [count]: ascending positions of the largest of F32 [S]."""
    entry = _entry()

    def run() -> Tensor:
        positions = torch.empty(count, dtype=torch.int32)
        code = entry(scores.data_ptr(), len(scores), count, positions.data_ptr())
        check(code, "top_k")
        return positions

    return run


@cache
def _entry() -> Any:
    # The library of the operator brings the threads and the scratch memory that the header uses.
    library("lightning_indexer")
    chosen = isa.selected()
    own, shared = (
        Path(ops.__path__[0]) / name / "csrc" for name in ("lightning_indexer", "native")
    )
    headers = sorted([*own.glob("*.h"), *shared.glob("*.h")])
    flags = (*chosen.flags, f"-DG5_{chosen.name.upper()}=1", f"-I{own}")
    path = build(f"bench-{chosen.name}", [_SOURCE], headers, flags, shared)
    entry = ctypes.CDLL(str(path)).g5_bench_top_k
    entry.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return entry
