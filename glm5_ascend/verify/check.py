"""The header-level check of a checkpoint: ``check_headers`` for other parts of the project."""

from __future__ import annotations

from pathlib import Path

from glm5_ascend.config import Glm5Config
from glm5_ascend.config_schedule import SHARED
from glm5_ascend.engine_releases import Release
from glm5_ascend.verify.config_checks import resolve_config
from glm5_ascend.verify.description_checks import check_description, resolve_schemes
from glm5_ascend.verify.findings import Finding, judge
from glm5_ascend.verify.folder import INDEX, Folder, read_folder
from glm5_ascend.verify.inventory import check_plain, check_quantised, model_tensors


def check_headers(directory: Path, release: Release | None = None) -> list[Finding]:
    """Everything that names, shapes, dtypes, description, index and configuration tell.

    Reads headers, text files and the one-number input scales of static layers; no other weights.

    Args:
        directory: a checkpoint, plain or quantised by any tool for vllm-ascend.
        release: the engine; None judges for all known releases.

    Returns:
        Findings, errors first; empty for a checkpoint that loads.

    Raises:
        CheckpointError: not a directory with safetensors files.
        ConfigError: no readable ``config.json``.
    """
    return judge(examine(directory)[0].conditions, release)


def examine(directory: Path) -> tuple[Folder, Glm5Config | None, dict[str, str | None]]:
    """The folder with its conditions, what configuration and schemes its tensors are of."""
    return examine_folder(read_folder(directory))


def examine_folder(folder: Folder) -> tuple[Folder, Glm5Config | None, dict[str, str | None]]:
    """As :func:`examine`, of a folder that is read or planned."""
    _check_indexes(folder)
    config = resolve_config(folder)
    if config is None:
        return folder, None, {}
    if SHARED in config.indexer_types:
        folder.note("release-too-old", "config.json")
    if folder.description is None:
        return folder, config, _check_undescribed(folder, config)
    model = model_tensors(config)
    schemes = resolve_schemes(folder, config, model)
    known = check_quantised(folder, config, model, schemes)
    check_description(folder, config, schemes, known)
    return folder, config, schemes


def _check_undescribed(folder: Folder, config: Glm5Config) -> dict[str, str | None]:
    int8 = [name for name, tensor in folder.tensors.items() if tensor.spec.dtype == "I8"]
    if int8:
        folder.note("description-missing", int8[0], f"and {len(int8) - 1:,} more")
        return {}
    check_plain(folder, config)
    return {}


def _check_indexes(folder: Folder) -> None:
    files = {file.name for file in folder.files}
    for index, weight_map in folder.indexes.items():
        rule = "index-foreign" if index == INDEX else "index-stale"
        gone = sorted(set(weight_map.values()) - files)
        if gone:
            folder.note(rule, index, f"lists {gone[0]}, which is not there")
            continue
        unlisted = sorted(set(folder.tensors) - set(weight_map))
        lost = sorted(set(weight_map) - set(folder.tensors))
        moved = [
            name
            for name, file in weight_map.items()
            if name in folder.tensors and folder.tensors[name].file.name != file
        ]
        for names, what in (
            (unlisted, "does not list {}"),
            (lost, "lists {}, which no file holds"),
            (moved, "lists {} in another file"),
        ):
            if names:
                more = f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""
                folder.note(rule, index, what.format(names[0]) + more)
