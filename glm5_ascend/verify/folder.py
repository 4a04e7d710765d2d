"""Read a checkpoint directory leniently: everything that can be read, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from glm5_ascend.checkpoint_files import list_files
from glm5_ascend.checkpoint_header import StoredTensor, read_header
from glm5_ascend.checkpoint_inventory import TensorSpec
from glm5_ascend.config import Glm5Config, read_json_object
from glm5_ascend.errors import CheckpointError, ConfigError
from glm5_ascend.files import DESCRIPTION_FILE, JOURNAL_FILE, open_regular, present
from glm5_ascend.verify.findings import Condition

INDEX = "model.safetensors.index.json"
INDEX_SUFFIX = ".safetensors.index.json"


@dataclass(slots=True)
class Folder:
    """A directory as found.

    Attributes:
        directory: the checkpoint.
        tensors: every tensor of every readable file.
        twice: tensors stored more than once.
        indexes: file name of each index to its map of tensor to file name.
        raw_config: ``config.json``; empty if unreadable.
        description: ``quant_model_description.json``; None where there is none.
        conditions: what was wrong so far.
    """

    directory: Path
    files: list[Path] = field(default_factory=list)
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    indexes: dict[str, dict[str, str]] = field(default_factory=dict)
    raw_config: dict[str, object] = field(default_factory=dict)
    description: dict[str, object] | None = None
    conditions: list[Condition] = field(default_factory=list)

    def spec(self, name: str) -> TensorSpec:
        """Shape and dtype of a stored tensor."""
        return self.tensors[name].spec

    def note(self, rule: str, subject: str, detail: str = "") -> None:
        """Add a condition."""
        self.conditions.append(Condition(rule, subject, detail))

    def bytes_of(self, name: str) -> bytes:
        """Content of a small tensor."""
        tensor = self.tensors[name]
        with open_regular(tensor.file) as stream:
            stream.seek(tensor.offset)
            return stream.read(tensor.nbytes)

    def setting(self, key: str) -> object:
        """A setting of the description, None where it is absent."""
        return None if self.description is None else self.description.get(key)

    def scheme(self, name: str) -> str | None:
        """The description's scheme of a tensor, None where it has none."""
        value = self.setting(name)
        return value if isinstance(value, str) else None


def read_folder(directory: Path) -> Folder:
    """Read headers, index, configuration and description; what fails becomes a condition.

    Raises:
        CheckpointError: the directory cannot be listed, or holds no safetensors file.
        ConfigError: ``config.json`` is missing or not JSON.
    """
    folder = Folder(directory)
    if present(directory / JOURNAL_FILE):
        folder.note("unfinished", JOURNAL_FILE, "is still there")
        folder.files = sorted(directory.glob("*.safetensors"))
    else:
        folder.files = list_files(directory)
    for file in folder.files:
        _read_tensors(folder, file)
    for file in sorted(directory.glob(f"*{INDEX_SUFFIX}")):
        _read_index(folder, file)
    folder.raw_config = read_json_object(directory / "config.json")
    if present(directory / DESCRIPTION_FILE):
        folder.description = _read_description(folder, directory / DESCRIPTION_FILE)
    return folder


def parse_config(folder: Folder, raw: dict[str, object]) -> Glm5Config:
    """The configuration in ``raw``; ``ConfigError`` names the folder's file."""
    return Glm5Config.from_dict(raw, source=str(folder.directory / "config.json"))


def _read_tensors(folder: Folder, file: Path) -> None:
    try:
        tensors, _ = read_header(file)
    except CheckpointError as error:
        folder.note("file-damaged", file.name, f"({error.message})")
        return
    for name, tensor in tensors.items():
        if name in folder.tensors:
            folder.note(
                "tensor-twice", name, f"in {folder.tensors[name].file.name} and {file.name}"
            )
        folder.tensors[name] = tensor


def _read_index(folder: Folder, file: Path) -> None:
    try:
        weight_map = read_json_object(file).get("weight_map")
    except ConfigError as error:
        folder.note("file-damaged", file.name, f"({error.message})")
        return
    if not isinstance(weight_map, dict):
        folder.note("file-damaged", file.name, "(no weight_map)")
        return
    folder.indexes[file.name] = {str(name): str(where) for name, where in weight_map.items()}


def _read_description(folder: Folder, file: Path) -> dict[str, object]:
    try:
        document = read_json_object(file)
    except ConfigError as error:
        folder.note("file-damaged", file.name, f"({error.message})")
        return {}
    for key, value in document.items():
        if "." in key and not isinstance(value, str):
            folder.note("description-value", key, f"has no scheme but {json.dumps(value)[:40]}")
    rotated = document.get("is_rot_used", False)
    if not isinstance(rotated, bool):
        folder.note("description-value", "is_rot_used", "must be true or false")
    return document
