"""Carry out one step: read a source tensor, fold, rotate, round, and return the stored bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glm5_ascend.checkpoint import CheckpointReader, TensorSpec
from glm5_ascend.checkpoint_values import first_not_finite
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant import matrix_cpu, matrix_reference
from glm5_ascend.quant.backend import CPU, Backend
from glm5_ascend.quant.folding import layer_of
from glm5_ascend.quant.matrix_reference import smoothed
from glm5_ascend.quant.packing import pack_words, unpack_rows
from glm5_ascend.quant.recipe import Action, Step
from glm5_ascend.quant.rotation import Orthogonal, in_layer, recycled_state
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.solutions import NO_SOLUTIONS, SmoothScales, Solutions
from glm5_ascend.quant.source_values import DAMAGED, TORCH_DTYPES, read_matrix

__all__ = ["as_bytes", "convert", "read_matrix"]

_SCALES = (".weight_scale", ".deq_scale", ".input_scale")


def convert(
    reader: CheckpointReader,
    step: Step,
    matrices: Mapping[str, Orthogonal],
    solutions: Solutions = NO_SOLUTIONS,
    backend: Backend = CPU,
) -> Iterator[tuple[str, memoryview]]:
    """Yield name and little-endian bytes of every tensor that ``step`` stores, in file order.

    Args:
        reader: the source checkpoint.
        step: what to do.
        matrices: rotations by name, those of one layer as in ``R2.17``; may be empty where the
            step has none.
        solutions: finished tensors, smoothing scales and static ranges of a calibration.
        backend: what carries out the arithmetic.

    Raises:
        CheckpointError: the source tensor holds NaN or infinity, or what becomes of it would; the
            message names the source tensor and its file.
        BackendUnavailable: from the backend.
    """
    given = solutions.tensors(step)
    made = data_free(reader, step, matrices, solutions, backend) if given is None else dict(given)
    if step.scheme is Scheme.W4A8_DYNAMIC and step.name not in step.stored:
        codes, module = unpack_rows(made[step.name]), step.name.removesuffix(".weight")
        made[f"{module}.weight_packed"] = pack_words(codes)
        made[f"{module}.weight_shape"] = torch.tensor(codes.shape)
    for name, spec in step.stored.items():
        data = as_bytes(made.pop(name), spec)
        _require_usable(reader, step, name, data)
        yield name, data


def _require_usable(reader: CheckpointReader, step: Step, name: str, data: memoryview) -> None:
    """Refuse to write NaN, infinity, or a scale that is not positive.

    Finite sources can still overflow: when FP8 is scaled, in a rotation, in a cast. The stored
    bytes are what every such case ends in.
    """
    spec = step.stored[name]
    if first_not_finite(data, spec.dtype) is not None:
        found = f"NaN or infinity as {spec.dtype}"
    elif name.endswith(_SCALES) and not _all_positive(data):
        found = "a scale that is not positive"
    else:
        return
    raise CheckpointError(
        f"{reader.file_of(step.source)}: tensor {step.source} is too large to convert: {name}"
        f" would hold {found}",
        DAMAGED,
    )


def _all_positive(data: memoryview) -> bool:
    return bool((np.frombuffer(data, dtype="<f4") > 0).all())


def as_bytes(tensor: Tensor, spec: TensorSpec) -> memoryview:
    """Return the bytes of ``tensor`` in the dtype of ``spec``; shapes must agree."""
    if tuple(tensor.shape) != spec.shape:
        raise ValueError(f"shape {tuple(tensor.shape)}, planned {spec.shape}")
    stored = tensor.to(TORCH_DTYPES[spec.dtype]).contiguous()
    flat: NDArray[np.uint8] = stored.view(torch.uint8).reshape(-1).numpy()
    return flat.data


def unrounded(
    reader: CheckpointReader,
    step: Step,
    matrices: Mapping[str, Orthogonal],
    smooth: SmoothScales | None,
    backend: Backend = CPU,
) -> Tensor:
    """Float32 values of a step whose action is MATRIX, folded, rotated and smoothed.

    Raises:
        CheckpointError: NaN or infinity in the source, or a block scale that is not positive.
    """
    matrices = in_layer(matrices, layer_of(step.name))
    if backend.name == "cpu":
        return matrix_cpu.folded(reader, step, matrices, smooth)
    weight = matrix_reference.folded(reader, step, matrices, backend)
    return matrix_reference.smoothed(weight, smooth).float().cpu()


def data_free(
    reader: CheckpointReader,
    step: Step,
    matrices: Mapping[str, Orthogonal],
    solutions: Solutions,
    backend: Backend = CPU,
) -> dict[str, Tensor]:
    """What a step stores without a finished solution.

    Raises:
        CheckpointError: as ``unrounded``.
    """
    if step.action is Action.MATRIX:
        matrices = in_layer(matrices, layer_of(step.name))
        if backend.name == "cpu":
            return matrix_cpu.tensors(reader, step, matrices, solutions)
        return matrix_reference.tensors(reader, step, matrices, solutions, backend)
    if step.action is Action.RECYCLED:
        gamma = read_matrix(reader, step.source)
        return {step.name: recycled_state(gamma, matrices["R1"])}
    if step.action is Action.ONES:
        reader.check_finite(step.source)
        values = torch.ones(step.shape)
    else:
        values = read_matrix(reader, step.source)
    return {step.name: smoothed(values, solutions.scales(step))}
