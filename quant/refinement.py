"""Learned refinements of the rotations: a file beside the weights, and how they are applied.

The engine does not need the file: every rotation is in the weights. ``verify --source`` reads it to
tell a learned rotation from damage. Its layout is that of safetensors under another name, because
engines load every ``*.safetensors`` file of a folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.files import read_bytes
from glm5_ascend.quant.rotation import Orthogonal, rotations

REFINEMENTS = "quantize_rotations.tensors"
_NOT_ORTHOGONAL = 1e-9
_NAME = re.compile(r"R1|(?:R2|R4)\.(0|[1-9]\d{0,3})")
_DIGEST = "sha256"
_HINT = "restore it from a copy, or quantise anew with --overwrite"


def refined(base: Orthogonal, blocks: Tensor) -> Orthogonal:
    """``R0 · Q`` with ``Q`` = diag(``blocks``), float64 [size / block, block, block]."""

    def rows(x: Tensor) -> Tensor:
        count, block, _ = blocks.shape
        pieces = x.reshape(-1, count, block).transpose(0, 1)
        return (pieces @ blocks.to(x)).transpose(0, 1).reshape(x.shape)

    last = Orthogonal(base.name, base.size, rows)
    return replace(base, rows=lambda x: rows(base.rows(x)), refinement=last)


def as_bytes(found: Mapping[str, Tensor]) -> bytes:
    """The content of the file: blocks by name, ``R1`` for all layers, ``R2.17`` for one.

    Its metadata have the SHA-256 of names, shapes and values: with a name or a layer lost, a file
    would still be one of rotations, but not of those that are in the weights.
    """
    blocks = {name: values.contiguous() for name, values in sorted(found.items())}
    return save(blocks, {_DIGEST: _digest(blocks)})


def refined_rotations(config: Glm5Config, file: Path | None) -> dict[str, Orthogonal]:
    """The rotations of a model, refined by what ``file`` holds if there is one.

    Raises:
        CheckpointError: the file is damaged or belongs to another model.
    """
    result = rotations(config)
    if file is None:
        return result
    base = dict(result)
    for name, blocks in read_refinements(file).items():
        known = _NAME.fullmatch(name)
        is_ours = known is not None and int(known[1] or 0) < config.layer_count
        matrix = base[name.split(".")[0]] if is_ours else None
        if matrix is None or not _fits(blocks, matrix.size):
            raise CheckpointError(f"{file}: {name} is no rotation of this model", _HINT)
        result[name] = refined(matrix, blocks)
    return result


def read_refinements(file: Path) -> dict[str, Tensor]:
    """What :func:`as_bytes` was given.

    Raises:
        CheckpointError: the file cannot be read or is damaged.
    """
    content = read_bytes(file, _HINT)
    try:
        found = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        is_whole = header["__metadata__"][_DIGEST] == _digest(found)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged", _HINT) from error
    if not is_whole:
        raise CheckpointError(f"{file} is damaged", _HINT)
    return found


def _digest(found: Mapping[str, Tensor]) -> str:
    state = hashlib.sha256()
    for name, blocks in sorted(found.items()):
        state.update(f"{name} {blocks.dtype} {list(blocks.shape)}\n".encode())
        state.update(blocks.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def _fits(blocks: Tensor, size: int) -> bool:
    if blocks.dim() != 3 or blocks.dtype != torch.float64:
        return False
    count, rows, columns = blocks.shape
    if rows != columns or count * rows != size:
        return False
    identity = torch.eye(rows, dtype=torch.float64)
    return float((blocks.mT @ blocks - identity).abs().max()) < _NOT_ORTHOGONAL
