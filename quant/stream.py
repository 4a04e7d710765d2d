"""Plan, validate everything, then write file after file; description, configuration, index last.

A destination is usable only when its last file exists. Until then it holds complete files of
weights, at most ``.part`` files, and the journal from which ``--resume`` continues.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glm5_ascend.checkpoint import (
    CheckpointReader,
    expected_tensors,
    require_free_space,
    write_text,
)
from glm5_ascend.config import read_json_object
from glm5_ascend.console import progress
from glm5_ascend.errors import CheckpointError, Glm5Error
from glm5_ascend.quant.description import (
    DESCRIPTION,
    as_text,
    copied_files,
    description,
    index_name,
    output_config,
    output_files,
    weight_index,
)
from glm5_ascend.quant.journal import (
    JOURNAL,
    Journal,
    describe_job,
    owned_files,
    require_same_job,
    resumable,
    write_manifest,
)
from glm5_ascend.quant.plan import Plan, make_plan
from glm5_ascend.quant.recipe import Choices
from glm5_ascend.quant.rotation import rotations
from glm5_ascend.quant.workers import Job, write_files

# Headers, copied files and journal: small beside the weights, but not nothing.
_SPARE_BYTES = 16 << 20


def prepare(source: Path, choices: Choices, shard_bytes: int | None) -> tuple[Plan, Journal]:
    """Read and check the source and decide everything; writes nothing.

    Returns:
        The plan, and a journal without a directory entry yet.

    Raises:
        Glm5Error: the source is at fault, or the choices do not fit the model.
    """
    _require_regular_source(source)
    with CheckpointReader(source) as reader:
        config = reader.config
        reader.check_inventory(expected_tensors(config))
        plan = make_plan(config, choices, shard_bytes)
        if choices.rotate:
            rotations(config)
        return plan, Journal(Path(), describe_job(reader, plan), output_files(plan, source))


@contextmanager
def destination(journal: Journal, plan: Plan, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Make ``journal.directory`` ready for the job, and hold a lock on it.

    With ``resume`` the files that are complete are noted in ``journal.done``.

    Raises:
        CheckpointError: the directory holds files and neither option covers them, the unfinished
            job in it is another one, or another run is working on it.
        DoesNotFit: the disk is too small.
    """
    directory = journal.directory
    obsolete = _entries(directory)
    found = resumable(directory) if resume else None
    if found is not None:
        require_same_job(found, journal.job)
        journal.done = {name: found.done[name] for name in found.done if _is_whole(found, name)}
        obsolete = set()
    if obsolete:
        _require_ours(directory, obsolete, resume=resume, overwrite=overwrite)
    left = sum(shard.nbytes for shard in plan.shards if shard.file not in journal.done)
    reclaimed = sum((directory / name).stat().st_size for name in obsolete)
    require_free_space(directory, max(0, left + _SPARE_BYTES - reclaimed))
    _make(directory)
    with _locked(directory):
        for name in sorted(obsolete):
            (directory / name).unlink()
        journal.save()
        yield


def write_weights(source: Path, plan: Plan, journal: Journal, workers: int) -> None:
    """Write every file of weights that the journal does not list yet."""
    left = [shard for shard in plan.shards if shard.file not in journal.done]
    job = Job(source, journal.directory, plan.choices.rotate)
    scheme = plan.choices.scheme
    title = "converting" if scheme == "none" else f"quantising to {scheme}"
    with progress(title, sum(shard.nbytes for shard in left)) as advance:
        write_files(
            job, left, workers, advance, lambda shard, record: journal.record(shard.file, record)
        )


def finish(source: Path, plan: Plan, journal: Journal) -> None:
    """Write everything that makes the directory a checkpoint, then drop the journal."""
    directory = journal.directory
    for name in copied_files(source):
        write_text(directory / name, _read_text(source / name))
    if plan.is_ascend:
        write_text(directory / DESCRIPTION, as_text(description(plan)))
    config = output_config(read_json_object(source / "config.json"), plan)
    write_text(directory / "config.json", as_text(config))
    write_text(directory / index_name(plan), as_text(weight_index(plan)))
    write_manifest(journal)
    (directory / JOURNAL).unlink()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise CheckpointError(
            f"another run is writing to {directory}", "wait for it, or stop it and resume"
        ) from error
    try:
        yield
    finally:
        os.close(handle)


def require_separate(source: Path, destination: Path) -> None:
    """Raise ``CheckpointError`` if the destination is the source or lies inside it."""
    inside, outside = destination.resolve(), source.resolve()
    if inside == outside or outside in inside.parents:
        raise CheckpointError(
            f"{destination} is {'the source' if inside == outside else 'inside the source'}",
            "choose a destination outside the source directory",
        )


def _require_regular_source(source: Path) -> None:
    if (source / DESCRIPTION).is_file():
        raise CheckpointError(
            f"{source} is quantised already: it holds {DESCRIPTION}",
            "give the original BF16 or FP8 checkpoint",
        )


def _entries(directory: Path) -> set[str]:
    if directory.exists() and not directory.is_dir():
        raise CheckpointError(f"{directory} is a file", "choose a directory as destination")
    try:
        names = {entry.name for entry in directory.iterdir()} if directory.exists() else set()
        # A run killed before its first journal was complete has left nothing else.
        return names - {f".{JOURNAL}.part"}
    except OSError as error:
        raise CheckpointError(
            f"cannot read {directory}: {error.strerror}", "choose a directory that you may read"
        ) from error


def _require_ours(directory: Path, present: set[str], *, resume: bool, overwrite: bool) -> None:
    """Refuse unless ``--overwrite`` was given and every entry is a file an earlier run wrote."""
    if not overwrite:
        hint = (
            "there is no journal to resume from; use --overwrite or an empty directory"
            if resume
            else "use --resume to continue an interrupted run, --overwrite to replace its output"
        )
        raise CheckpointError(f"{directory} is not empty", hint)
    owned = owned_files(directory)
    foreign = sorted(present - owned) if owned is not None else sorted(present)
    foreign += sorted(name for name in present if not (directory / name).is_file())
    if foreign:
        raise CheckpointError(
            f"{directory} holds {foreign[0]}, which no run of this tool wrote",
            "--overwrite replaces only the output of an earlier run; choose another directory",
        )


def _is_whole(journal: Journal, name: str) -> bool:
    path = journal.directory / name
    return path.is_file() and path.stat().st_size == journal.done[name].bytes


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot create {directory}: {error.strerror}",
            "choose a destination that you may write to",
        ) from error


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Glm5Error(f"cannot copy {path}: {error}", "check or remove this file") from error
