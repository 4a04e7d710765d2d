"""Plan, validate everything, then write file after file; description, configuration, index last.

A destination is usable only when its last file exists. Until then it holds complete files of
weights, at most ``.part`` files, and the journal from which ``--resume`` continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from glm5_ascend.checkpoint import CheckpointReader, expected_tensors
from glm5_ascend.checkpoint_writer import write_bytes
from glm5_ascend.console import note, progress
from glm5_ascend.engine_releases import Release
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.backend import CPU, Backend
from glm5_ascend.quant.description import DESCRIPTION, companions, text_files
from glm5_ascend.quant.files import names_in, refusals, sha256_of
from glm5_ascend.quant.identity import describe_job, require_unchanged
from glm5_ascend.quant.journal import JOURNAL, Journal, write_manifest
from glm5_ascend.quant.plan import Plan, make_plan
from glm5_ascend.quant.planned import require_loadable
from glm5_ascend.quant.recipe import Recipe
from glm5_ascend.quant.rotation import rotations
from glm5_ascend.quant.solutions import NO_SOLUTIONS, Solutions
from glm5_ascend.quant.workers import Job, write_files


def prepare(
    source: Path,
    recipe: Recipe,
    shard_bytes: int | None,
    release: Release | None = None,
    backend: Backend = CPU,
) -> tuple[Plan, dict[str, bytes], Journal]:
    """Read and check the source and decide everything; writes nothing.

    Returns:
        The plan, the content of every text file in the order of writing, and a journal without a
        directory yet.

    Raises:
        Glm5Error: the source is at fault, or the recipe does not fit the model.
    """
    refuse_quantised(source)
    with CheckpointReader(source) as reader:
        config = reader.config
        reader.check_inventory(expected_tensors(config))
        plan = make_plan(config, recipe, shard_bytes)
        if recipe.rotate:
            rotations(config)
        copied = companions(source)
        texts = text_files(source, plan, copied)
        require_loadable(plan, texts, release)
        files = [*(shard.file for shard in plan.shards), *texts]
        return plan, texts, Journal(Path(), describe_job(reader, plan, copied, backend), files)


def refuse_quantised(source: Path) -> None:
    """Raise ``CheckpointError`` for a source that holds a description."""
    if DESCRIPTION in names_in(source, "give a directory that you may read"):
        raise CheckpointError(
            f"{source} is quantised already: it holds {DESCRIPTION}",
            "give the original BF16 or FP8 checkpoint",
        )


def write_weights(
    source: Path,
    plan: Plan,
    journal: Journal,
    workers: int,
    solutions: Solutions = NO_SOLUTIONS,
    backend: Backend = CPU,
) -> None:
    """Write every file of weights that the journal does not list yet."""
    left = [shard for shard in plan.shards if shard.file not in journal.done]
    if not left:
        note(f"all {len(plan.shards)} files of weights are complete")
        return
    job = Job(source, journal.directory, plan.recipe.rotate, solutions, backend)
    name = plan.recipe.name
    title = "converting" if plan.recipe.is_float else f"quantising to {name}"
    with progress(title, sum(shard.nbytes for shard in left)) as advance:
        write_files(
            job, left, workers, advance, lambda shard, record: journal.record(shard.file, record)
        )


def finish(
    source: Path,
    texts: Mapping[str, bytes],
    journal: Journal,
    *,
    hash_source: bool = False,
    calibration: Mapping[str, object] | None = None,
) -> None:
    """Write everything that makes the directory a checkpoint, then drop the journal.

    ``hash_source`` puts the SHA-256 of each source file into the manifest, ``calibration`` is put
    there as it is.

    Raises:
        CheckpointError: the source changed since the run began; nothing is written then.
    """
    digests = _source_digests(source) if hash_source else {}
    require_unchanged(source, journal.job)
    for name, content in texts.items():
        write_bytes(journal.directory / name, content)
    write_manifest(journal, texts, digests, calibration)
    with refusals(f"remove {journal.directory / JOURNAL}", "remove this file"):
        (journal.directory / JOURNAL).unlink()


def _source_digests(source: Path) -> dict[str, str]:
    files = sorted(source.glob("*.safetensors"))
    with progress("hashing the source", sum(file.stat().st_size for file in files)) as advance:
        return {file.name: sha256_of(file, advance) for file in files}
