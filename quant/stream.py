"""Plan, validate everything, then write file after file; description, configuration, index last.

A destination is usable only when its last file exists. Until then it holds complete files of
weights, at most ``.part`` files, and the journal from which ``--resume`` continues.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from glm5_ascend.quant.journal import JOURNAL, FileRecord, Journal, write_manifest
from glm5_ascend.quant.plan import Plan, Shard, make_plan
from glm5_ascend.quant.planned import require_loadable
from glm5_ascend.quant.recipe import Recipe
from glm5_ascend.quant.refinement import REFINEMENTS
from glm5_ascend.quant.rotation import rotations
from glm5_ascend.quant.solutions import NO_SOLUTIONS, Solutions
from glm5_ascend.quant.source_release import SourceRelease, consumers, remove, require_data
from glm5_ascend.quant.workers import Job, write_files


def prepare(
    source: Path,
    recipe: Recipe,
    shard_bytes: int | None,
    release: Release | None = None,
    backend: Backend = CPU,
    earlier: Journal | None = None,
) -> tuple[Plan, dict[str, bytes], Journal, dict[str, set[str]]]:
    """Read and check the source and decide everything; writes nothing.

    ``earlier`` is the journal of an interrupted run that deletes its source.

    Returns:
        The plan, the content of every text file in the order of writing, a journal without a
        directory yet, and which outputs are made from each source file.

    Raises:
        Glm5Error: the source is at fault, or the recipe does not fit the model.
    """
    refuse_quantised(source)
    released = {} if earlier is None else earlier.released
    with CheckpointReader(source, data_optional=bool(released)) as reader:
        config = reader.config
        require_data(reader, released)
        reader.check_inventory(expected_tensors(config))
        plan = make_plan(config, recipe, shard_bytes)
        if recipe.rotate:
            rotations(config)
        copied = companions(source)
        texts = text_files(source, plan, copied)
        require_loadable(plan, texts, release)
        learned = [REFINEMENTS] if recipe.refines else []
        files = [*(shard.file for shard in plan.shards), *texts, *learned]
        job = describe_job(reader, plan, copied, backend, _known(earlier))
        journal = Journal(Path(), job, files, released=dict(released))
        return plan, texts, journal, consumers(reader, plan)


def _known(earlier: Journal | None) -> dict[str, object]:
    sources = {} if earlier is None else earlier.job.get("sources")
    if earlier is None or not isinstance(sources, dict):
        return {}
    return {name: sources.get(name) for name in earlier.released}


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
    release: SourceRelease | None = None,
    cpus: Sequence[Collection[int]] = (),
) -> None:
    """Write every file of weights that the journal does not list yet.

    ``release`` deletes what is not needed any more of the source; ``cpus`` are those of each
    worker, all of them without it.
    """
    if release is not None:
        release.catch_up()
    left = [shard for shard in plan.shards if shard.file not in journal.done]
    if not left:
        note(f"all {len(plan.shards)} files of weights are complete")
        return
    is_cut = release is not None or bool(journal.released)
    job = Job(source, journal.directory, plan.recipe.rotate, solutions, backend, is_cut)

    def finished(shard: Shard, record: FileRecord) -> None:
        journal.record(shard.file, record)
        if release is not None:
            release.completed(shard.file)

    name = plan.recipe.name
    title = "converting" if plan.recipe.is_float else f"quantising to {name}"
    with progress(title, sum(shard.nbytes for shard in left)) as advance:
        write_files(job, left, workers, advance, finished, cpus)


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
    digests = _source_digests(source, journal.released) if hash_source else {}
    require_unchanged(source, journal.job, released=journal.released)
    for name, content in texts.items():
        write_bytes(journal.directory / name, content)
    write_manifest(journal, texts, digests, calibration)
    if journal.released:
        journal.close()
    close(source, journal)


def close(source: Path, journal: Journal) -> None:
    """Remove the source files that were cut, then the journal; the job is complete."""
    remove(source, journal.released)
    with refusals(f"remove {journal.directory / JOURNAL}", "remove this file"):
        (journal.directory / JOURNAL).unlink(missing_ok=True)


def _source_digests(source: Path, released: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of each source file; those of files that were cut were taken before."""
    files = [file for file in sorted(source.glob("*.safetensors")) if file.name not in released]
    with progress("hashing the source", sum(file.stat().st_size for file in files)) as advance:
        found = {file.name: sha256_of(file, advance) for file in files}
    return dict(sorted({**found, **{name: sha for name, sha in released.items() if sha}}.items()))
