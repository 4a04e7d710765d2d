"""A plan as the folder that it will become, for the rules of ``verify`` before any work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from glm5_ascend.checkpoint import tensor_bytes
from glm5_ascend.checkpoint_header import StoredTensor
from glm5_ascend.console import note
from glm5_ascend.engine_releases import Release
from glm5_ascend.errors import ConfigError
from glm5_ascend.files import DESCRIPTION_FILE
from glm5_ascend.quant.plan import Plan
from glm5_ascend.verify.check import examine_folder
from glm5_ascend.verify.findings import judge
from glm5_ascend.verify.folder import INDEX_SUFFIX, Folder

# The first series with an int8 cache of indexer keys.
_FIRST_C8 = (0, 18)


class PlannedFolder(Folder):
    """A folder without files; its small tensors are equal wherever the format wants them equal."""

    def bytes_of(self, name: str) -> bytes:
        """Nothing: no tensor has a value yet."""
        return b""


def require_loadable(plan: Plan, texts: Mapping[str, bytes], release: Release | None) -> None:
    """Refuse a plan whose output the engine would not load, or would compute wrongly with.

    Args:
        plan: what will be written.
        texts: the files beside the weights.
        release: the engine; None refuses what no known release can load.

    Raises:
        ConfigError: a format without rules for the release, or the first error of ``verify``'s
            rules; warnings about a release are printed.
    """
    if plan.recipe.format != "ascend":
        if release is not None:
            raise ConfigError(
                f"there are no rules for {plan.recipe.format} in {release}",
                "leave out --for, or --format",
            )
        return
    engine = "every release of vllm-ascend" if release is None else str(release)
    if release is not None and plan.recipe.kv == "c8" and release.series < _FIRST_C8:
        raise ConfigError(
            f"{engine} has no int8 cache of indexer keys, which recipe {plan.recipe.name} is for",
            "name a newer release, or use a recipe with kv: none",
        )
    for finding in judge(examine_folder(_folder(plan, texts))[0].conditions, release):
        if finding.severity == "error":
            raise ConfigError(
                f"{engine} would not serve what recipe {plan.recipe.name} makes: {finding.message}",
                "change the recipe, or name another release with --for",
            )
        if release is not None:
            note(f"warning: {finding.message}")


def _folder(plan: Plan, texts: Mapping[str, bytes]) -> Folder:
    directory = Path()
    folder = PlannedFolder(directory)
    folder.files = [directory / shard.file for shard in plan.shards]
    folder.tensors = {
        name: StoredTensor(directory / shard.file, spec, 0, tensor_bytes(spec))
        for shard in plan.shards
        for name, spec in shard.tensors().items()
    }
    folder.raw_config = json.loads(texts["config.json"])
    folder.indexes = {
        name: json.loads(text)["weight_map"]
        for name, text in texts.items()
        if name.endswith(INDEX_SUFFIX)
    }
    if DESCRIPTION_FILE in texts:
        folder.description = json.loads(texts[DESCRIPTION_FILE])
    return folder
