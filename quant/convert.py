"""Carry out one step: read a source tensor, fold, rotate, round, and return the stored bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glm5_ascend.checkpoint import CheckpointReader, TensorSpec
from glm5_ascend.checkpoint_values import first_not_finite
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.nearest import round_nearest
from glm5_ascend.quant.packing import offset_bias, pack_rows
from glm5_ascend.quant.recipe import Action, Step
from glm5_ascend.quant.rotation import Orthogonal, on_columns, on_rows, recycled_state
from glm5_ascend.quant.rounding import round_int4, round_int8
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.solutions import NO_SOLUTIONS, SmoothScales, Solutions
from glm5_ascend.quant.static_linear import static_tensors

_TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "I32": torch.int32,
}
_DAMAGED = "the weights are damaged; download this file again or ask who made the checkpoint"
# Float64 elements processed at once when rows are independent (256 MiB).
_CHUNK = 1 << 25
_SCALES = (".weight_scale", ".deq_scale", ".input_scale")


def convert(
    reader: CheckpointReader,
    step: Step,
    matrices: Mapping[str, Orthogonal],
    solutions: Solutions = NO_SOLUTIONS,
) -> Iterator[tuple[str, memoryview]]:
    """Yield name and little-endian bytes of every tensor that ``step`` stores, in file order.

    Args:
        reader: the source checkpoint.
        step: what to do.
        matrices: rotations by name; may be empty where the step has none.
        solutions: finished tensors, smoothing scales and static ranges of a calibration.

    Raises:
        CheckpointError: the source tensor holds NaN or infinity, or what becomes of it would; the
            message names the source tensor and its file.
    """
    given = solutions.tensors(step)
    tensors = _convert(reader, step, matrices, solutions) if given is None else dict(given)
    for name, spec in step.stored.items():
        data = as_bytes(tensors.pop(name), spec)
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
        _DAMAGED,
    )


def _all_positive(data: memoryview) -> bool:
    return bool((np.frombuffer(data, dtype="<f4") > 0).all())


def as_bytes(tensor: Tensor, spec: TensorSpec) -> memoryview:
    """Return the bytes of ``tensor`` in the dtype of ``spec``; shapes must agree."""
    if tuple(tensor.shape) != spec.shape:
        raise ValueError(f"shape {tuple(tensor.shape)}, planned {spec.shape}")
    stored = tensor.to(_TORCH[spec.dtype]).contiguous()
    flat: NDArray[np.uint8] = stored.view(torch.uint8).reshape(-1).numpy()
    return flat.data


def read_matrix(reader: CheckpointReader, name: str, rows: slice | None = None) -> Tensor:
    """Read a tensor, or some rows of it, as finite float64; FP8 blocks are dequantised.

    Raises:
        CheckpointError: NaN, infinity or a scale that is not positive, naming tensor and file.
    """
    spec = reader.spec(name)
    values = _view(reader, name)[rows] if rows is not None else _view(reader, name)
    result = values.to(torch.float32 if spec.dtype == "F8_E4M3" else torch.float64)
    if not bool(torch.isfinite(result).all()):
        reader.check_finite(name)
        raise CheckpointError(
            f"{reader.file_of(name)}: tensor {name} holds NaN or infinity",
            _DAMAGED,
        )
    if spec.dtype != "F8_E4M3":
        return result
    start = 0 if rows is None else int(rows.start)
    return _dequantise(reader, name, result, start).double()


def _dequantise(reader: CheckpointReader, name: str, values: Tensor, start: int) -> Tensor:
    """``fp8 · scale`` of its block in float32, on the ceiling grid of blocks (partial at edges)."""
    fp8 = reader.config.fp8
    if fp8 is None:
        raise ValueError(f"{name} is FP8 but the configuration has no blocks")
    scale_name = name + "_scale_inv"
    reader.check_finite(scale_name)
    scales = _view(reader, scale_name).float()
    if not bool((scales > 0).all()):
        raise CheckpointError(
            f"{reader.file_of(scale_name)}: tensor {scale_name} holds a scale that is not positive",
            _DAMAGED,
        )
    high, wide = fp8.block
    row_block = torch.arange(start, start + values.shape[0]) // high
    column_block = torch.arange(values.shape[1]) // wide
    return values * scales[row_block][:, column_block]


def _view(reader: CheckpointReader, name: str) -> Tensor:
    spec = reader.spec(name)
    return torch.frombuffer(reader.raw(name), dtype=_TORCH[spec.dtype]).reshape(spec.shape)


def _convert(
    reader: CheckpointReader,
    step: Step,
    matrices: Mapping[str, Orthogonal],
    solutions: Solutions,
) -> dict[str, Tensor]:
    smooth = solutions.scales(step)
    if step.action is Action.ONES:
        reader.check_finite(step.source)
        return {step.name: _smoothed(torch.ones(step.shape), smooth)}
    if step.action is Action.COPY:
        return {step.name: _smoothed(read_matrix(reader, step.source), smooth)}
    if step.action is Action.RECYCLED:
        gamma = read_matrix(reader, step.source)
        return {step.name: recycled_state(gamma, matrices["R1"])}
    weight = _smoothed(_folded(reader, step, matrices), smooth)
    module = step.name.removesuffix(".weight")
    if step.scheme is Scheme.FLOAT:
        return {step.name: weight}
    codes, scale = _rounded(weight, step)
    extra: dict[str, Tensor] = {}
    if step.scheme is Scheme.W8A8:
        given = solutions.static_range(step)
        if given is None:
            raise ValueError(f"{step.name} is static, and no range of its input is known")
        extra = {f"{module}.{name}": t for name, t in static_tensors(codes, scale, given).items()}
    elif step.scheme is Scheme.W4A8_DYNAMIC:
        is_down = module.endswith(".down_proj")
        extra = {f"{module}.scale_bias": offset_bias(codes, scale, is_down=is_down)}
        codes = pack_rows(codes)
    return {
        step.name: codes,
        f"{module}.weight_scale": scale,
        f"{module}.weight_offset": torch.zeros_like(scale),
        **extra,
    }


def _rounded(weight: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """Codes and scale; a step of ``gptq`` gets here where nothing is known of its input."""
    bits = 4 if step.scheme is Scheme.W4A8_DYNAMIC else 8
    if step.rounding == "nearest":
        return round_nearest(weight, bits)
    return round_int4(weight) if bits == 4 else round_int8(weight)


def _smoothed(values: Tensor, smooth: SmoothScales | None) -> Tensor:
    if smooth is None:
        return values
    if smooth.columns is not None:
        values = values * smooth.columns
    if smooth.rows is not None:
        values = values * smooth.rows.reshape(-1, *[1] * (values.dim() - 1))
    return values


def _folded(reader: CheckpointReader, step: Step, matrices: Mapping[str, Orthogonal]) -> Tensor:
    """Source matrix with norms and rotations folded in: float64, or the stored dtype if large."""
    gamma = [read_matrix(reader, name) for name in step.fold.norms]

    def fold_columns(part: Tensor) -> Tensor:
        if gamma:
            part = part * torch.cat(gamma)
        if step.fold.columns is not None:
            part = on_columns(part, step.fold.columns, matrices)
        return part

    if step.fold.rows is not None or step.scheme is not Scheme.FLOAT:
        weight = fold_columns(read_matrix(reader, step.source))
        return weight if step.fold.rows is None else on_rows(weight, step.fold.rows, matrices)
    return _by_rows(reader, step, fold_columns)


def _by_rows(
    reader: CheckpointReader, step: Step, fold_columns: Callable[[Tensor], Tensor]
) -> Tensor:
    """Fold pieces of rows, so that a vocabulary matrix never exists in float64."""
    result = torch.empty(step.shape, dtype=_TORCH[step.float_dtype])
    size = max(1, _CHUNK // step.shape[1])
    for start in range(0, step.shape[0], size):
        part = slice(start, min(start + size, step.shape[0]))
        result[part] = fold_columns(read_matrix(reader, step.source, part)).to(result.dtype)
    return result
