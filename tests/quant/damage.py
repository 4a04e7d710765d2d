"""Change single tensors, keys and bytes of a written checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.core.engine_folder import edit_json

Edit = Callable[[torch.Tensor], torch.Tensor | None]


def copy_of(directory: Path, target: Path) -> Path:
    """A writable copy."""
    return Path(shutil.copytree(directory, target))


def file_with(directory: Path, name: str) -> Path:
    """The safetensors file that holds a tensor."""
    for file in sorted(directory.glob("*.safetensors")):
        if name in load_file(file):
            return file
    raise KeyError(name)


def edit(directory: Path, name: str, change: Edit) -> None:
    """Replace a tensor by what ``change`` makes of it; None takes it out."""
    file = file_with(directory, name)
    tensors = load_file(file)
    result = change(tensors.pop(name).clone())
    if result is not None:
        tensors[name] = result.contiguous()
    save_file(tensors, file, {"format": "pt"})


def drop(directory: Path, *names: str) -> None:
    """Take tensors out of files, index and description."""
    for name in names:
        edit(directory, name, lambda tensor: None)
    for index in directory.glob("*.index.json"):
        document = json.loads(index.read_text())
        for name in names:
            document["weight_map"].pop(name, None)
        index.write_text(json.dumps(document))
    edit_json(directory / "quant_model_description.json", **dict.fromkeys(names))


def flip_byte(file: Path, position: int = -1) -> None:
    """Same size, other content."""
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)
