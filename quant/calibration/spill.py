"""Activations on disk: matrices with a row per token, mapped, so that memory stays bounded.

A matrix appears under its name only when every byte of it is on disk, as a file of weights does.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from glm5_ascend.quant.files import refusals

_HINT = "choose another --work-dir"
_FULL = "free some space or choose another --work-dir, then run it again"


def create(path: Path, rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A new mapped matrix of zeros [rows, width]; :func:`keep` gives it its name.

    Raises:
        DoesNotFit: the disk is too small; space is reserved here, because a mapped file that finds
            no room later ends the process.
    """
    part = _part(path)
    size = rows * width * dtype.itemsize
    with refusals(f"write {path}", _HINT, _FULL):
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.posix_fallocate(handle, 0, size)
        finally:
            os.close(handle)
    return _mapped(part, rows, width, dtype)


def keep(path: Path) -> None:
    """Name what :func:`create` made; returns once it is durable."""
    part = _part(path)
    with refusals(f"write {path}", _HINT, _FULL):
        handle = os.open(part, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(part, path)
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def discard(path: Path) -> None:
    """Remove a matrix, finished or not."""
    path.unlink(missing_ok=True)
    _part(path).unlink(missing_ok=True)


def open_rows(path: Path, rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A kept matrix, mapped; writing to it reaches the file.

    Raises:
        CheckpointError: it is gone or has another size.
    """
    with refusals(f"read {path}", "start anew with --overwrite"):
        found = path.stat().st_size
        if found != rows * width * dtype.itemsize:
            raise OSError(0, f"it has {found:,} bytes, not {rows * width * dtype.itemsize:,}")
    return _mapped(path, rows, width, dtype)


def _mapped(path: Path, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.from_file(str(path), shared=True, size=rows * width, dtype=dtype).view(rows, width)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
