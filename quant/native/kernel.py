"""The fused kernels as functions on tensors."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.native import address, check, library
from glm5_ascend.quant.native.axis import KernelAxis
from glm5_ascend.quant.native.errors import HINT

_HOME = Path(__file__).resolve().parent.parent
_SOURCES = {torch.float32: 0, torch.bfloat16: 1, torch.float8_e4m3fn: 5}
_FLOATS = {torch.float32: 0, torch.bfloat16: 1}
_INTEGERS = {8: 2, 4: 3}
_NOT_FINITE = 3
_TYPES = (
    *(c_int, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int64),
    *(c_void_p, c_int64, c_void_p, c_void_p, c_void_p) * 2,
    *(c_int, c_int, c_void_p, c_void_p, c_void_p, c_int64),
)


class NotFinite(ValueError):
    """The source holds NaN or infinity."""


@dataclass(frozen=True, slots=True)
class Source:
    """A stored matrix.

    Attributes:
        values: [out, in], float32, bfloat16 or float8_e4m3fn, contiguous.
        scales: float32 [ceil(out / high), ceil(in / wide)] of float8's blocks, or None.
        block: (high, wide) of a block.
    """

    values: Tensor
    scales: Tensor | None = None
    block: tuple[int, int] = (1, 1)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Integer codes: int8 [out, in], or packed int4 [out / 2, in].

    ``scale`` is float32 [out, 1]; a row that is not finite has an infinite or NaN scale. ``bias``
    is float32 [out, slices], empty for int8.
    """

    codes: Tensor
    scale: Tensor
    bias: Tensor


def require_kernels() -> None:
    """Compile the kernels or find them in the cache.

    Raises:
        BackendUnavailable: no compiler, no writable cache; the hint names ``--backend reference``.
    """
    _library()


def fold(
    source: Source,
    columns: KernelAxis,
    rows: KernelAxis,
    bits: int,
    *,
    search: bool = True,
    slices: int = 1,
) -> Rounded:
    """Fold ``source`` along both axes in float32, find scales and round.

    The same bits on every processor and for every number of threads; ``quant/README.md`` gives the
    order of all sums.

    Args:
        source: the matrix W.
        columns: what acts on the input side, W ← W · diag(factors) · R · diag(after).
        rows: on the output side, W ← diag(after) · Rᵀ · diag(factors) · W.
        bits: 8, with scales that are exact in bfloat16, or 4, packed, ``out`` even.
        search: look for the scale of least squared error; else the one that clips nothing.
        slices: columns of int4's ``bias``, partial sums over equal slices of ``in``.

    Raises:
        NotFinite: NaN or infinity in the source.
        BackendUnavailable: see :func:`require_kernels`.
    """
    out, inner = source.values.shape
    codes = torch.empty(out // 2 if bits == 4 else out, inner, dtype=torch.int8)
    scale = torch.empty(out, 1)
    bias = torch.empty(out if bits == 4 else 0, slices)
    to = (_INTEGERS[bits], int(search), codes.data_ptr(), scale.data_ptr(), bias.data_ptr(), slices)
    _call(source, columns, rows, to)
    return Rounded(codes, scale, bias)


def fold_float(source: Source, columns: KernelAxis, rows: KernelAxis, dtype: torch.dtype) -> Tensor:
    """Fold ``source`` as :func:`fold` does and return it as ``dtype``, float32 or bfloat16.

    Raises:
        NotFinite: NaN or infinity in the source.
        BackendUnavailable: see :func:`require_kernels`.
    """
    result = torch.empty(source.values.shape, dtype=dtype)
    _call(source, columns, rows, (_FLOATS[dtype], 0, result.data_ptr(), 0, 0, 1))
    return result


def _call(source: Source, columns: KernelAxis, rows: KernelAxis, to: tuple[int, ...]) -> None:
    values, scales = source.values, source.scales
    if values.dim() != 2 or not values.is_contiguous() or values.numel() == 0:
        raise ValueError(f"a contiguous matrix, got {tuple(values.shape)}")
    entry = _library().g5_fold
    if entry.argtypes is None:
        entry.argtypes = _TYPES
    code = entry(
        *(_SOURCES[values.dtype], values.data_ptr(), *values.shape, address(scales), *source.block),
        *_axis(columns, values.shape[1]),
        *_axis(rows, values.shape[0]),
        *to,
    )
    if code == _NOT_FINITE:
        raise NotFinite
    check(code, "quantize")


def _axis(axis: KernelAxis, size: int) -> tuple[int, ...]:
    for vector in (axis.factors, axis.after):
        if vector is not None and vector.shape != (size,):
            raise ValueError(f"{tuple(vector.shape)} factors for an axis of {size}")
    vectors = (axis.factors, axis.again, axis.after)
    return (axis.segments.ctypes.data, len(axis.segments), *map(address, vectors))


def _library() -> ctypes.CDLL:
    try:
        return library("native", _HOME)
    except BackendUnavailable as error:
        raise BackendUnavailable(error.message, _hint(error.hint)) from None


def _hint(hint: str) -> str:
    """The hint of the operators' kernels, with this command's option instead of theirs."""
    first, _, _ = hint.partition(", or choose backend 'reference'")
    return f"{first}, or {HINT}" if first else HINT
