"""Strict parsing of one safetensors header.

Format: an 8-byte little-endian header length, a JSON object (name to dtype, shape and
``data_offsets`` relative to the end of the header, plus ``__metadata__``), then the data. The data
must be covered exactly: no gap, no overlap, no byte after the last tensor.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from glm5_ascend.checkpoint_inventory import TensorSpec
from glm5_ascend.errors import CheckpointError, brief
from glm5_ascend.files import open_regular
from glm5_ascend.json_file import no_duplicates

DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
# The limit of the safetensors library itself.
_MAX_HEADER_BYTES = 100_000_000
# The format stores sizes as 64-bit numbers.
_SIZE_LIMIT = 1 << 64
_MOST_AXES = 32
_HINT = "download or copy this file again and compare its size and checksum with the source"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies: ``nbytes`` bytes from the absolute ``offset`` in ``file``."""

    file: Path
    spec: TensorSpec
    offset: int
    nbytes: int


def tensor_bytes(spec: TensorSpec) -> int:
    """Size in bytes of a tensor."""
    return math.prod(spec.shape) * DTYPE_BYTES[spec.dtype]


def read_header(
    file: Path, *, data_optional: bool = False
) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Tensors (in data order) and metadata of a safetensors file.

    Args:
        file: the file.
        data_optional: accept a file that ends with its header.

    Raises:
        CheckpointError: unreadable, truncated, malformed, or the data is not covered exactly.
    """
    try:
        with open_regular(file) as stream:
            header, data_start, size = _load(file, stream)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {file}: {error.strerror or error}",
            "check that it is a regular file that you may read",
        ) from error
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{file}: __metadata__ is not a map of strings", _HINT)
    tensors = [_entry(file, name, entry, data_start) for name, entry in header.items()]
    tensors.sort(key=lambda pair: (pair[1].offset, pair[1].nbytes))
    position = data_start
    is_header_only = data_optional and size == data_start
    for name, tensor in tensors:
        if tensor.offset != position:
            word = "overlaps" if tensor.offset < position else "leaves a gap after"
            raise CheckpointError(f"{file}: tensor {name} {word} the tensor before it", _HINT)
        position += tensor.nbytes
        if position > size and not is_header_only:
            raise CheckpointError(
                f"{file} is truncated at {size:,} bytes: tensor {name} ends at {position:,}",
                _HINT,
            )
    if position != size and not is_header_only:
        raise CheckpointError(
            f"{file} has {size - position:,} bytes after the last tensor; none belong there", _HINT
        )
    return dict(tensors), metadata


def _load(file: Path, stream: BinaryIO) -> tuple[dict[str, object], int, int]:
    size = os.fstat(stream.fileno()).st_size
    prefix = stream.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > size - 8:
        raise CheckpointError(f"{file} is truncated: {size:,} bytes cannot hold its header", _HINT)
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{file}: header of {length:,} bytes exceeds the format's limit", _HINT
        )
    try:
        header = json.loads(stream.read(length), object_pairs_hook=no_duplicates)
    except ValueError as error:
        raise CheckpointError(f"{file}: header is not valid JSON: {error}", _HINT) from error
    except RecursionError as error:
        raise CheckpointError(f"{file}: header is nested too deeply", _HINT) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: header is not a JSON object", _HINT)
    return header, 8 + length, size


def _entry(file: Path, name: str, entry: object, data_start: int) -> tuple[str, StoredTensor]:
    where = f"{file}: tensor {name}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where} has a malformed header entry", _HINT)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise CheckpointError(f"{where} has the unknown dtype {brief(dtype)}", _HINT)
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where} has a malformed shape or offset", _HINT)
    spec = TensorSpec(tuple(shape), dtype)
    nbytes = offsets[1] - offsets[0]
    if nbytes != tensor_bytes(spec):
        raise CheckpointError(
            f"{where} is {dtype} {list(shape)} = {tensor_bytes(spec):,} bytes, but its offsets"
            f" span {nbytes:,}",
            _HINT,
        )
    return name, StoredTensor(file, spec, data_start + offsets[0], nbytes)


def _are_sizes(value: object) -> bool:
    if not isinstance(value, list) or len(value) > _MOST_AXES:
        return False
    return all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < _SIZE_LIMIT for n in value
    )
