"""Matrices of a plan by the fused kernels: from the source's bytes to the stored tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.quant.native import KernelAxis, NotFinite, Source, fold, fold_float, kernel_axis
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.rotation import Orthogonal
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
    columns, rows = axes(reader, step, matrices, solutions.scales(step))
    source = _source(reader, step.source)
    try:
        if step.scheme is Scheme.FLOAT:
            dtype = TORCH_DTYPES[step.float_dtype]
            return {step.name: fold_float(source, columns, rows, dtype)}
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
    columns, rows = axes(reader, step, matrices, smooth)
    try:
        return fold_float(_source(reader, step.source), columns, rows, torch.float32)
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
