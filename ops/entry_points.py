"""Functions of one operator's C++ library with their argument types, cheap to look up."""

from __future__ import annotations

from ctypes import c_double, c_int, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.native import DTYPES, library


class _Formats(dict[torch.dtype, int]):
    def __missing__(self, dtype: torch.dtype) -> int:
        known = ", ".join(str(known).removeprefix("torch.") for known in self)
        raise ArgumentError(f"backend 'cpu' takes {known} here, not {dtype}")


# Numbers of float formats in kernels that compute F64 too.
FORMATS = _Formats(DTYPES | {torch.float64: 3})
_TYPES: dict[str, Any] = {"p": c_void_p, "n": c_int64, "i": c_int, "d": c_double}
# Calls with more work than this may use threads.
_LARGE = 1 << 18


def in_main_memory(*tensors: Tensor) -> None:
    """Refuse tensors whose numbers a function in C++ cannot reach.

    Raises:
        ArgumentError: a tensor is on another device.
    """
    for tensor in tensors:
        if not tensor.is_cpu:
            raise ArgumentError(f"backend 'cpu' takes CPU tensors, not one on {tensor.device}")


class EntryPoints:
    """Entry points of ``ops/<operator>/csrc``.

    A decode step calls small functions a hundred times, so the library is asked for (which reads
    instruction set and number of threads from the environment) at the first call and for calls
    that are large enough to use threads, not for every one.

    Args:
        operator: folder of the operator.
        signatures: function -> one letter per argument: p pointer, n int64, i int, d double.
    """

    def __init__(self, operator: str, signatures: dict[str, str]) -> None:
        self._operator = operator
        self._signatures = signatures
        self._known: dict[str, Any] = {}

    def get(self, name: str, work: int) -> Any:
        """Function ``name`` for a call with ``work`` multiplications, or 8 times as many values.

        Raises:
            BackendUnavailable: the library cannot be compiled or run here.
        """
        if work < _LARGE and name in self._known:
            return self._known[name]
        function = getattr(library(self._operator), name)
        if function.argtypes is None:
            function.argtypes = [_TYPES[letter] for letter in self._signatures[name]]
        self._known[name] = function
        return function

    def forget(self) -> None:
        """Ask for the library again at the next call: its instruction set was changed."""
        self._known.clear()
