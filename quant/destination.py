"""The destination directory: whose files it holds, what of them is complete, and the lock."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.checkpoint import require_free_space
from glm5_ascend.console import note, progress
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.files import names_in, refusals, sha256_of
from glm5_ascend.quant.identity import require_same_job
from glm5_ascend.quant.journal import (
    JOURNAL,
    Journal,
    owned_files,
    resumable,
)
from glm5_ascend.quant.plan import Plan, Shard
from glm5_ascend.quant.source_release import refuse_lost

# Headers, copied files and journal: small beside the weights, but not nothing.
_SPARE_BYTES = 16 << 20
_ELSEWHERE = "choose a directory as destination that you may read and write"


@dataclass(frozen=True, slots=True)
class Need:
    """What a run takes from the disk.

    Attributes:
        waiting: which outputs are made from each source file.
        growth: bytes that writing some outputs takes at most.
    """

    waiting: Mapping[str, set[str]]
    growth: Callable[[Iterable[Shard]], int] = lambda shards: sum(s.nbytes for s in shards)


@contextmanager
def destination(
    journal: Journal, plan: Plan, need: Need, *, resume: bool, overwrite: bool
) -> Iterator[None]:
    """Make ``journal.directory`` ready for the job, and hold a lock on it.

    With ``resume`` the files whose SHA-256 is the recorded one are noted in ``journal.done``;
    damaged ones are written again.

    Raises:
        CheckpointError: the directory holds files and neither option covers them, the job whose
            files it holds is another one, or another run is working on it.
        DoesNotFit: the disk is too small.
    """
    directory = journal.directory
    # A run killed before its first journal was complete has left nothing else.
    obsolete = names_in(directory, _ELSEWHERE) - {f".{JOURNAL}.part"}
    with ExitStack() as held:
        if directory.exists():
            _require_writable(directory)
            held.enter_context(locked(directory))
        found = resumable(directory) if resume else None
        if found is not None:
            require_same_job(directory, found.job, journal.job)
            journal.done = {name: found.done[name] for name in _whole(found, plan)}
            refuse_lost(journal, sorted(set(found.done) - set(journal.done)), need.waiting)
            obsolete = set()
        if obsolete:
            _require_ours(journal, obsolete, resume=resume, overwrite=overwrite)
        left = need.growth(shard for shard in plan.shards if shard.file not in journal.done)
        reclaimed = sum((directory / name).stat().st_size for name in obsolete)
        require_free_space(directory, max(0, left + _SPARE_BYTES - reclaimed))
        if not directory.exists():
            with refusals(f"create {directory}", _ELSEWHERE):
                directory.mkdir(parents=True)
            held.enter_context(locked(directory))
        with refusals(f"replace the files in {directory}", _ELSEWHERE):
            for name in sorted(obsolete):
                (directory / name).unlink()
        journal.save()
        yield


def require_separate(source: Path, destination: Path) -> None:
    """Raise ``CheckpointError`` if the destination is the source or lies inside it."""
    inside, outside = Path(os.path.realpath(destination)), Path(os.path.realpath(source))
    if inside == outside or outside in inside.parents:
        raise CheckpointError(
            f"{destination} is {'the source' if inside == outside else 'inside the source'}",
            "choose a destination outside the source directory",
        )


def _whole(journal: Journal, plan: Plan) -> list[str]:
    """The recorded files of weights whose content is the recorded one."""
    recorded = [shard.file for shard in plan.shards if shard.file in journal.done]
    known = [name for name in recorded if os.path.isfile(journal.directory / name)]
    if not known:
        return []
    with progress("checking files", sum(journal.done[name].bytes for name in known)) as advance:
        whole = []
        for name in known:
            if sha256_of(journal.directory / name, advance) == journal.done[name].sha256:
                whole.append(name)
            else:
                note(f"{journal.directory / name} is damaged and will be written again")
    return whole


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    with refusals(f"open {directory}", _ELSEWHERE):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"another run is writing to {directory}", "wait for it, or stop it and resume"
            ) from error
        yield
    finally:
        os.close(handle)


def _require_writable(directory: Path) -> None:
    effective = os.access in os.supports_effective_ids
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=effective):
        raise CheckpointError(f"cannot write to {directory}: Permission denied", _ELSEWHERE)


def _require_ours(journal: Journal, present: set[str], *, resume: bool, overwrite: bool) -> None:
    """Refuse unless ``--overwrite`` was given and every entry is a file an earlier run wrote."""
    directory = journal.directory
    owned = owned_files(directory, journal)
    foreign = sorted(present - owned)
    foreign += sorted(name for name in present if not os.path.isfile(directory / name))
    if foreign:
        raise CheckpointError(
            f"{directory} is not empty: it holds {foreign[0]}, which no run of this tool wrote",
            "--overwrite replaces only the output of an earlier run; choose another directory",
        )
    if not overwrite:
        hint = (
            "there is no journal to resume from; use --overwrite or an empty directory"
            if resume
            else "use --resume to continue an interrupted run, --overwrite to replace its output"
        )
        raise CheckpointError(f"{directory} is not empty", hint)
