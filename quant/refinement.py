"""Learned refinements of the rotations: a file beside the weights, and how they are applied.

The engine does not need the file: every rotation is in the weights. ``verify --source`` reads it to
tell a learned rotation from damage. Its layout is that of safetensors under another name, because
engines load every ``*.safetensors`` file of a folder.
"""

from __future__ import annotations

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


def refined(base: Orthogonal, blocks: Tensor) -> Orthogonal:
    """``R0 · Q`` with ``Q`` = diag(``blocks``), float64 [size / block, block, block]."""

    def rows(x: Tensor) -> Tensor:
        count, block, _ = blocks.shape
        pieces = x.reshape(-1, count, block).transpose(0, 1)
        return (pieces @ blocks.to(x)).transpose(0, 1).reshape(x.shape)

    last = Orthogonal(base.name, base.size, rows)
    return replace(base, rows=lambda x: rows(base.rows(x)), refinement=last)


def as_bytes(found: Mapping[str, Tensor]) -> bytes:
    """The content of the file: blocks by name, ``R1`` for all layers, ``R2.17`` for one."""
    return save({name: blocks.contiguous() for name, blocks in sorted(found.items())})


def refined_rotations(config: Glm5Config, file: Path | None) -> dict[str, Orthogonal]:
    """The rotations of a model, refined by what ``file`` holds if there is one.

    Raises:
        CheckpointError: the file is damaged or belongs to another model.
    """
    result = rotations(config)
    if file is None:
        return result
    base = dict(result)
    for name, blocks in _read(file).items():
        matrix = base.get(name.split(".")[0])
        if matrix is None or not _fits(blocks, matrix.size):
            raise CheckpointError(
                f"{file}: {name} is no rotation of this model", "start anew with --overwrite"
            )
        result[name] = refined(matrix, blocks)
    return result


def _read(file: Path) -> dict[str, Tensor]:
    content = read_bytes(file, "start anew with --overwrite")
    try:
        return load(content)
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged", "start anew with --overwrite") from error


def _fits(blocks: Tensor, size: int) -> bool:
    if blocks.dim() != 3 or blocks.dtype != torch.float64:
        return False
    count, rows, columns = blocks.shape
    if rows != columns or count * rows != size:
        return False
    identity = torch.eye(rows, dtype=torch.float64)
    return float((blocks.mT @ blocks - identity).abs().max()) < _NOT_ORTHOGONAL
