"""Matrices of a plan by the fused kernels: from the source's bytes to the stored tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.quant.folding import Axis
from glm5_ascend.quant.native import KernelAxis, NotFinite, Source, fold, fold_float, kernel_axis
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.rotation import Orthogonal, on_columns, on_rows
from glm5_ascend.quant.scheme import DOWN_BIAS_COLUMNS, Scheme
from glm5_ascend.quant.solutions import SmoothScales, Solutions
from glm5_ascend.quant.source_values import (
    TORCH_DTYPES,
    block_scales,
    read_matrix,
    refuse_not_finite,
    view,
)
from glm5_ascend.quant.stored_form import stored_form

# Float32 elements turned at once where rows are independent (128 MiB).
_CHUNK = 1 << 25


def tensors(
    reader: CheckpointReader,
    step: Step,
    matrices: Mapping[str, Orthogonal],
    solutions: Solutions,
) -> dict[str, Tensor]:
    """The stored tensors of a step whose action is MATRIX.

    Raises:
        CheckpointError: NaN or infinity in the source, or a block scale that is not positive.
        BackendUnavailable: a rotation that the kernels do not know.
    """
    smooth = solutions.scales(step)
    try:
        if step.scheme is Scheme.FLOAT:
            dtype = TORCH_DTYPES[step.float_dtype]
            return {step.name: _float(reader, step, matrices, smooth, dtype)}
        source = _source(reader, step.source)
        if _refinements(step, matrices):
            source = Source(_refined(source, reader, step, matrices))
            columns, rows = _after(smooth)
        else:
            columns, rows = axes(reader, step, matrices, smooth)
        return _rounded(step, source, columns, rows, solutions)
    except NotFinite:
        return refuse_not_finite(reader, step.source)


def folded(
    reader: CheckpointReader,
    step: Step,
    matrices: Mapping[str, Orthogonal],
    smooth: SmoothScales | None,
) -> Tensor:
    """Float32 values of a step whose action is MATRIX, before rounding; errors of ``tensors``."""
    try:
        return _float(reader, step, matrices, smooth, torch.float32)
    except NotFinite:
        return refuse_not_finite(reader, step.source)


def axes(
    reader: CheckpointReader,
    step: Step,
    matrices: Mapping[str, Orthogonal],
    smooth: SmoothScales | None,
) -> tuple[KernelAxis, KernelAxis]:
    """What acts on the columns and on the rows of a step's matrix."""
    norms = [read_matrix(reader, name) for name in step.fold.norms]
    gamma = torch.cat(norms) if norms else None
    after = (None, None) if smooth is None else (smooth.columns, smooth.rows)
    columns = kernel_axis(step.fold.columns, matrices, gamma, after[0])
    return columns, kernel_axis(step.fold.rows, matrices, after=after[1])


def _float(
    reader: CheckpointReader,
    step: Step,
    matrices: Mapping[str, Orthogonal],
    smooth: SmoothScales | None,
    dtype: torch.dtype,
) -> Tensor:
    """Values of a step, folded, rotated and smoothed, in ``dtype``."""
    source = _source(reader, step.source)
    if not _refinements(step, matrices):
        return fold_float(source, *axes(reader, step, matrices, smooth), dtype)
    if step.fold.rows is not None or source.scales is not None:
        whole = _refined(source, reader, step, matrices)
        return fold_float(Source(whole), *_after(smooth), dtype)
    # By rows: a vocabulary matrix never exists in float32.
    result = torch.empty(step.shape, dtype=dtype)
    size = max(1, _CHUNK // step.shape[1])
    for start in range(0, step.shape[0], size):
        part = slice(start, min(start + size, step.shape[0]))
        piece = _refined(Source(source.values[part]), reader, step, matrices)
        result[part] = fold_float(Source(piece), *_after(smooth, part), dtype)
    return result


def _refinements(step: Step, matrices: Mapping[str, Orthogonal]) -> dict[str, Orthogonal]:
    """What follows the Hadamard matrices on the axes of a step; empty for most runs."""
    segments = [axis.segments for axis in (step.fold.columns, step.fold.rows) if axis is not None]
    names = {name for parts in segments for name, _ in parts if name is not None}
    found = {name: matrices[name].refinement for name in names}
    return {name: matrix for name, matrix in found.items() if matrix is not None}


def _refined(
    source: Source, reader: CheckpointReader, step: Step, matrices: Mapping[str, Orthogonal]
) -> Tensor:
    """Float32 values of ``source``, folded and rotated: Hadamard matrices first, then the rest."""
    plain = {name: replace(matrix, refinement=None) for name, matrix in matrices.items()}
    last = _refinements(step, matrices)
    columns, rows = axes(reader, step, plain, None)
    values = fold_float(source, columns, rows, torch.float32)
    for axis, turn in ((step.fold.columns, on_columns), (step.fold.rows, on_rows)):
        if axis is not None:
            values = turn(values, _only(axis, last), last)
    return values


def _only(axis: Axis, matrices: Mapping[str, Orthogonal]) -> Axis:
    """The axis without the names that ``matrices`` lacks."""
    parts = tuple((name if name in matrices else None, width) for name, width in axis.segments)
    return replace(axis, segments=parts)


def _after(smooth: SmoothScales | None, part: slice = slice(None)) -> tuple[KernelAxis, KernelAxis]:
    """Axes that only smooth; ``part`` of the rows."""
    columns, rows = (None, None) if smooth is None else (smooth.columns, smooth.rows)
    rows = None if rows is None else rows[part]
    return kernel_axis(None, {}, after=columns), kernel_axis(None, {}, after=rows)


def _source(reader: CheckpointReader, name: str) -> Source:
    values = view(reader, name)
    if reader.spec(name).dtype == "F8_E4M3":
        scales, block = block_scales(reader, name)
        return Source(values, scales.contiguous(), block)
    return Source(values)


def _rounded(
    step: Step, source: Source, columns: KernelAxis, rows: KernelAxis, solutions: Solutions
) -> dict[str, Tensor]:
    """A step of ``gptq`` gets here where nothing is known of its input: the search does it."""
    search = step.rounding != "nearest"
    if step.scheme is not Scheme.W4A8_DYNAMIC:
        found = fold(source, columns, rows, 8, search=search)
        return stored_form(step, found.codes, found.scale, solutions.static_range(step))
    module = step.name.removesuffix(".weight")
    slices = DOWN_BIAS_COLUMNS if module.endswith(".down_proj") else 1
    found = fold(source, columns, rows, 4, search=search, slices=slices)
    return {
        step.name: found.codes,
        f"{module}.weight_scale": found.scale,
        f"{module}.weight_offset": torch.zeros_like(found.scale),
        f"{module}.scale_bias": found.bias,
    }
