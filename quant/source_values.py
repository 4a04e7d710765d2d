"""Values of a source checkpoint: views of its bytes, and matrices in float64."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.errors import CheckpointError

TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
}
DAMAGED = "the weights are damaged; download this file again or ask who made the checkpoint"


def view(reader: CheckpointReader, name: str) -> Tensor:
    """A tensor as it is stored, in the mapped file."""
    spec = reader.spec(name)
    return torch.frombuffer(reader.raw(name), dtype=TORCH_DTYPES[spec.dtype]).reshape(spec.shape)


def read_matrix(reader: CheckpointReader, name: str, rows: slice | None = None) -> Tensor:
    """Read a tensor, or some rows of it, as finite float64; FP8 blocks are dequantised.

    Raises:
        CheckpointError: NaN, infinity or a scale that is not positive, naming tensor and file.
    """
    spec = reader.spec(name)
    values = view(reader, name)[rows] if rows is not None else view(reader, name)
    result = values.to(torch.float32 if spec.dtype == "F8_E4M3" else torch.float64)
    if not bool(torch.isfinite(result).all()):
        refuse_not_finite(reader, name)
    if spec.dtype != "F8_E4M3":
        return result
    start = 0 if rows is None else int(rows.start)
    return _dequantise(reader, name, result, start).double()


def refuse_not_finite(reader: CheckpointReader, name: str) -> NoReturn:
    """Raise ``CheckpointError`` for a tensor that holds NaN or infinity, saying where if possible.

    The reader finds the first one; the message without a position is for a file that changes.
    """
    reader.check_finite(name)
    raise CheckpointError(
        f"{reader.file_of(name)}: tensor {name} holds NaN or infinity",
        DAMAGED,
    )


def block_scales(reader: CheckpointReader, name: str) -> tuple[Tensor, tuple[int, int]]:
    """Scales float32 [ceil(out / high), ceil(in / wide)] of an FP8 tensor, and (high, wide).

    Raises:
        CheckpointError: NaN, infinity or a scale that is not positive, naming tensor and file.
    """
    fp8 = reader.config.fp8
    if fp8 is None:
        raise ValueError(f"{name} is FP8 but the configuration has no blocks")
    scale_name = name + "_scale_inv"
    reader.check_finite(scale_name)
    scales = view(reader, scale_name).float()
    if not bool((scales > 0).all()):
        raise CheckpointError(
            f"{reader.file_of(scale_name)}: tensor {scale_name} holds a scale that is not positive",
            DAMAGED,
        )
    return scales, fp8.block


def _dequantise(reader: CheckpointReader, name: str, values: Tensor, start: int) -> Tensor:
    """``fp8 · scale`` of its block in float32, on the ceiling grid of blocks (partial at edges)."""
    scales, (high, wide) = block_scales(reader, name)
    row_block = torch.arange(start, start + values.shape[0]) // high
    column_block = torch.arange(values.shape[1]) // wide
    return values * scales[row_block][:, column_block]
