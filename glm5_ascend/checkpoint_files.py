"""Which files make up a checkpoint: the directory listing and the index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from glm5_ascend.errors import CheckpointError, brief
from glm5_ascend.files import refuse_unfinished
from glm5_ascend.json_file import read_json_object

AGAIN = "download the checkpoint again; it must hold exactly the tensors of its config.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def list_files(directory: Path) -> list[Path]:
    """The safetensors files in the root of a checkpoint, sorted; never anything pickled."""
    refuse_unfinished(directory)
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        raise CheckpointError(
            f"cannot read {directory}: {error.strerror or error}",
            "give the directory of a Hugging Face checkpoint",
        ) from error
    files = [entry for entry in entries if entry.suffix == ".safetensors"]
    if not files:
        pickles = [entry.name for entry in entries if entry.suffix in _PICKLES]
        if pickles:
            raise CheckpointError(
                f"{directory} holds pickled weights only ({pickles[0]}); pickle can run code and"
                " is never read",
                "convert the checkpoint to safetensors first",
            )
        raise CheckpointError(
            f"{directory} holds no *.safetensors file", "give the directory with the weights"
        )
    return files


def read_index(directory: Path) -> dict[str, Path]:
    """Tensor name to file, empty where there is no index."""
    found = sorted(directory.glob("*.safetensors.index.json"))
    if len(found) > 1:
        raise CheckpointError(
            f"{directory} has two index files: {found[0].name} and {found[1].name}",
            "remove the one that belongs to another checkpoint",
        )
    if not found:
        return {}
    weight_map = read_json_object(found[0]).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{found[0]} has no weight_map", AGAIN)
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{found[0]} names {brief(file)} for tensor {name}", AGAIN)
    return {name: directory / file for name, file in weight_map.items()}


def refuse_missing_files(index: Mapping[str, Path], files: list[Path]) -> None:
    """Raise ``CheckpointError`` if the index names a file that is not there."""
    present = set(files)
    for name, file in index.items():
        if file not in present:
            raise CheckpointError(
                f"the index names {file} for tensor {name}, but there is no such file", AGAIN
            )
