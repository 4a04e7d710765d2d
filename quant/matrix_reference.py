"""Matrices of a plan with torch in float64, on the CPU or on a device: the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.quant.backend import Backend
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.rotation import Orthogonal, on_columns, on_rows
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.solutions import SmoothScales, Solutions
from glm5_ascend.quant.source_values import TORCH_DTYPES, read_matrix
from glm5_ascend.quant.stored_form import rounded, stored_form

# Float64 elements processed at once when rows are independent (256 MiB).
_CHUNK = 1 << 25


def tensors(
    reader: CheckpointReader,
    step: Step,
    matrices: Mapping[str, Orthogonal],
    solutions: Solutions,
    backend: Backend,
) -> dict[str, Tensor]:
    """The stored tensors of a step whose action is MATRIX.

    Raises:
        CheckpointError: NaN or infinity in the source, or a block scale that is not positive.
    """
    weight = smoothed(folded(reader, step, matrices, backend), solutions.scales(step))
    if step.scheme is Scheme.FLOAT:
        return {step.name: weight.cpu()}
    codes, scale = rounded(weight, step)
    return stored_form(step, codes.cpu(), scale.cpu(), solutions.static_range(step))


def smoothed(values: Tensor, smooth: SmoothScales | None) -> Tensor:
    """``values`` [out, in] or [out] times the factors of its rows and columns."""
    if smooth is None:
        return values
    if smooth.columns is not None:
        values = values * smooth.columns.to(values)
    if smooth.rows is not None:
        values = values * smooth.rows.to(values).reshape(-1, *[1] * (values.dim() - 1))
    return values


def folded(
    reader: CheckpointReader, step: Step, matrices: Mapping[str, Orthogonal], backend: Backend
) -> Tensor:
    """Source matrix with norms and rotations folded in: float64, or the stored dtype if large."""

    def read(name: str, rows: slice | None = None) -> Tensor:
        return read_matrix(reader, name, rows).to(backend.device, backend.dtype)

    gamma = [read(name) for name in step.fold.norms]

    def fold_columns(part: Tensor) -> Tensor:
        if gamma:
            part = part * torch.cat(gamma)
        if step.fold.columns is not None:
            part = on_columns(part, step.fold.columns, matrices)
        return part

    if step.fold.rows is not None or step.scheme is not Scheme.FLOAT:
        weight = fold_columns(read(step.source))
        return weight if step.fold.rows is None else on_rows(weight, step.fold.rows, matrices)
    return _by_rows(step, lambda part: fold_columns(read(step.source, part)))


def _by_rows(step: Step, folded: Callable[[slice], Tensor]) -> Tensor:
    """Fold pieces of rows, so that a vocabulary matrix never exists in float64."""
    result = torch.empty(step.shape, dtype=TORCH_DTYPES[step.float_dtype])
    size = max(1, _CHUNK // step.shape[1])
    for start in range(0, step.shape[0], size):
        part = slice(start, min(start + size, step.shape[0]))
        result[part] = folded(part).to(result.dtype)
    return result
