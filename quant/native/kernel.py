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
from glm5_ascend.quant.scheme import Scheme

_HOME = Path(__file__).resolve().parent.parent
_SOURCES = {torch.float32: 0, torch.bfloat16: 1, torch.float8_e4m3fn: 5}
_KINDS = {torch.float32: 0, torch.bfloat16: 1, Scheme.W8A8_DYNAMIC: 2, Scheme.W4A8_DYNAMIC: 3}
_NOT_FINITE = 3
_TYPES = (
    *(c_int, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int64),
    *(c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p),
    *(c_int, c_void_p, c_void_p, c_void_p, c_int64),
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
    """Integer codes: int8 [out, in], or packed int4 [out / 2, in] with ``bias`` [out, slices].

    ``scale`` is float32 [out, 1]; a row that is not finite has an infinite or NaN scale.
    """

    codes: Tensor
    scale: Tensor
    bias: Tensor | None


def require_kernels() -> None:
    """Compile the kernels or find them in the cache.

    Raises:
        BackendUnavailable: no compiler, no writable cache; the hint names ``--backend reference``.
    """
    _library()


def fold(
    source: Source, columns: KernelAxis, rows: KernelAxis, scheme: Scheme, slices: int = 1
) -> Rounded:
    """Fold ``source`` along both axes in float32, search scales and round.

    The same bits on every processor and for every number of threads; README.md gives the order of
    all sums.

    Args:
        source: the matrix W.
        columns: what acts on the input side, W ← W · diag(factors) · R.
        rows: on the output side, W ← Rᵀ · diag(factors) · W.
        scheme: W8A8_DYNAMIC or W4A8_DYNAMIC.
        slices: columns of int4's ``bias``, partial sums over equal slices of ``in``.

    Raises:
        NotFinite: NaN or infinity in the source.
        BackendUnavailable: see :func:`require_kernels`.
    """
    out, inner = source.values.shape
    is_int4 = scheme is Scheme.W4A8_DYNAMIC
    codes = torch.empty(out // 2 if is_int4 else out, inner, dtype=torch.int8)
    scale = torch.empty(out, 1)
    bias = torch.empty(out, slices) if is_int4 else None
    _call(source, columns, rows, _KINDS[scheme], codes, scale, bias, slices)
    return Rounded(codes, scale, bias)


def fold_float(source: Source, columns: KernelAxis, rows: KernelAxis, dtype: torch.dtype) -> Tensor:
    """Fold ``source`` as :func:`fold` does and return it as ``dtype``, float32 or bfloat16.

    Raises:
        NotFinite: NaN or infinity in the source.
        BackendUnavailable: see :func:`require_kernels`.
    """
    result = torch.empty(source.values.shape, dtype=dtype)
    _call(source, columns, rows, _KINDS[dtype], result, None, None, 1)
    return result


def _call(
    source: Source,
    columns: KernelAxis,
    rows: KernelAxis,
    kind: int,
    out: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    slices: int,
) -> None:
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
        *(kind, out.data_ptr(), address(scale), address(bias), slices),
    )
    if code == _NOT_FINITE:
        raise NotFinite
    check(code, "quantize")


def _axis(axis: KernelAxis, size: int) -> tuple[int, int, int, int]:
    if axis.factors is not None and axis.factors.shape != (size,):
        raise ValueError(f"{tuple(axis.factors.shape)} factors for an axis of {size}")
    return (
        axis.segments.ctypes.data,
        len(axis.segments),
        address(axis.factors),
        address(axis.again),
    )


def _library() -> ctypes.CDLL:
    try:
        return library("native", _HOME)
    except BackendUnavailable as error:
        raise BackendUnavailable(error.message, _hint(error.hint)) from None


def _hint(hint: str) -> str:
    """The hint of the operators' kernels, with this command's option instead of theirs."""
    first, _, _ = hint.partition(", or choose backend 'reference'")
    return f"{first}, or {HINT}" if first else HINT
