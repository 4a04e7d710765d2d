"""Writing a model, with its weights beside it where they do not fit into one protobuf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto

from glm5_ascend.checkpoint import require_free_space, tensor_bytes, write_shard
from glm5_ascend.checkpoint_header import read_header
from glm5_ascend.checkpoint_writer import write_bytes
from glm5_ascend.console import Advance, progress
from glm5_ascend.ops.onnx.graph import ONNX_TYPES
from glm5_ascend.ops.onnx.weights import Weight

# A protobuf ends at 2 GiB; the rest is for nodes.
INLINE_LIMIT = 2_000_000_000


def data_file(path: Path) -> Path:
    """Where the weights of a large model are."""
    return path.with_name(f"{path.name}.safetensors")


def save(
    model: onnx.ModelProto,
    weights: Sequence[Weight],
    path: Path,
    inline_limit: int = INLINE_LIMIT,
) -> int:
    """Write ``model`` and its weights; return the bytes of all files.

    Weights of more than ``inline_limit`` bytes go to :func:`data_file`, which is a safetensors
    file that the model points into; a stacked weight is several tensors there. Both files appear
    under their names only when complete.

    Raises:
        CheckpointError: a file cannot be written, or a weight holds NaN or infinity.
        DoesNotFit: the disk is too small.
    """
    nbytes = sum(weight.nbytes for weight in weights)
    require_free_space(path.parent, nbytes)
    if nbytes <= inline_limit:
        model.graph.initializer.extend(_inline(weight) for weight in weights)
        data = model.SerializeToString()
        write_bytes(path, data)
        return len(data)
    beside = data_file(path)
    parts = {part.name: part.spec for weight in weights for part in weight.parts}
    with progress("writing the weights", nbytes) as advance:
        write_shard(beside, parts, _chunks(weights, advance), {})
    try:
        stored, _ = read_header(beside)
        model.graph.initializer.extend(
            _external(weight, beside.name, stored[weight.parts[0].name].offset)
            for weight in weights
        )
        data = model.SerializeToString()
        write_bytes(path, data)
    except BaseException:
        beside.unlink()
        raise
    return len(data) + beside.stat().st_size


def _chunks(weights: Sequence[Weight], advance: Advance) -> Iterator[tuple[str, memoryview]]:
    for weight in weights:
        for name, data in weight.chunks():
            yield name, data
            advance(data.nbytes)


def _inline(weight: Weight) -> onnx.TensorProto:
    tensor = _declare(weight)
    tensor.raw_data = b"".join(chunk for _, chunk in weight.chunks())
    return tensor


def _external(weight: Weight, location: str, offset: int) -> onnx.TensorProto:
    tensor = _declare(weight)
    tensor.data_location = TensorProto.EXTERNAL
    length = sum(tensor_bytes(part.spec) for part in weight.parts)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _declare(weight: Weight) -> onnx.TensorProto:
    return TensorProto(
        name=weight.name, data_type=ONNX_TYPES[weight.spec.dtype], dims=weight.spec.shape
    )
