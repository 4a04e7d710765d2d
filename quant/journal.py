"""The journal of a running job and the manifest of a finished one.

The journal says what the job is (source, choices, plan) and which files are complete. It is
replaced as a whole, atomically, after each file has been renamed into place; a kill in between
costs that one file, which comes out the same again. The manifest replaces it at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from glm5_ascend import __version__
from glm5_ascend.checkpoint import CheckpointReader, write_text
from glm5_ascend.config import read_json_object
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.folding import SEED
from glm5_ascend.quant.plan import Plan

JOURNAL = "quantize_journal.json"
MANIFEST = "quantize_manifest.json"
_HEADER_LIMIT = 8


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and SHA-256 of one complete output file."""

    bytes: int
    sha256: str


@dataclass(slots=True)
class Journal:
    """State of one job in its destination directory.

    ``job`` identifies the work; ``files`` are all names the job may write; ``done`` grows.
    """

    directory: Path
    job: dict[str, object]
    files: list[str]
    done: dict[str, FileRecord] = field(default_factory=dict)

    def save(self) -> None:
        """Replace the journal on disk; returns once it is durable."""
        document = {
            "job": self.job,
            "files": self.files,
            "done": {name: asdict(self.done[name]) for name in sorted(self.done)},
        }
        write_text(self.directory / JOURNAL, json.dumps(document, indent=1) + "\n")

    def record(self, file: str, record: FileRecord) -> None:
        """Note that ``file`` is complete; call it after the rename."""
        self.done[file] = record
        self.save()


def describe_job(reader: CheckpointReader, plan: Plan) -> dict[str, object]:
    """What must be equal for a job to be resumed: tool, choices, plan, source files.

    A source file is known by size, modification time and the SHA-256 of its header.
    """
    sources: dict[str, object] = {}
    for file in reader.files():
        status = os.stat(file)
        sources[file.name] = {
            "bytes": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "header_sha256": _header_sha256(file),
        }
    config = hashlib.sha256((reader.directory / "config.json").read_bytes()).hexdigest()
    return {
        "tool": f"glm5-ascend {__version__}",
        "choices": asdict(plan.choices),
        "seed": SEED if plan.choices.rotate else None,
        "plan_sha256": plan.digest(),
        "config_sha256": config,
        "sources": sources,
    }


def read_journal(directory: Path) -> Journal | None:
    """Return the journal of an unfinished job, None where there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    if not (directory / JOURNAL).is_file():
        return None
    document = read_json_object(directory / JOURNAL)
    return _parse(directory, JOURNAL, *map(document.get, ("job", "files", "done")))


def resumable(directory: Path) -> Journal | None:
    """Return the journal of an unfinished job, or one made from the manifest of a finished one."""
    journal = read_journal(directory)
    if journal is not None or not (directory / MANIFEST).is_file():
        return journal
    document = read_json_object(directory / MANIFEST)
    written, weights = document.pop("written", None), document.pop("weights", None)
    return _parse(directory, MANIFEST, document, written, weights)


def require_same_job(journal: Journal, job: Mapping[str, object]) -> None:
    """Raise ``CheckpointError`` naming what differs from the job that was interrupted.

    A manifest does not know modification times; then they are not compared.
    """
    for key, wanted in job.items():
        found = journal.job.get(key)
        if key == "sources" and found == _without_times(wanted):
            continue
        if found == wanted:
            continue
        difference = _difference(key, found, wanted)
        raise CheckpointError(
            f"{journal.directory} holds the work of a run that differs in {difference}",
            "repeat the command with the same source and options, or start anew with --overwrite",
        )


def write_manifest(journal: Journal) -> None:
    """Write what was made from what: sizes and SHA-256 of every file of weights."""
    document = {
        **journal.job,
        "sources": _without_times(journal.job["sources"]),
        "written": journal.files,
        "weights": {name: asdict(journal.done[name]) for name in sorted(journal.done)},
    }
    write_text(journal.directory / MANIFEST, json.dumps(document, indent=1) + "\n")


def owned_files(directory: Path) -> set[str] | None:
    """Names an earlier run may have written into ``directory``, None if no run left its record."""
    journal = resumable(directory)
    if journal is None:
        return None
    names = {*journal.files, JOURNAL, MANIFEST}
    return names | {f".{name}.part" for name in names}


def _parse(directory: Path, file: str, job: object, files: object, done: object) -> Journal:
    try:
        if not isinstance(job, dict) or not isinstance(files, list) or not isinstance(done, dict):
            raise TypeError("not of this form")
        records = {str(name): FileRecord(**entry) for name, entry in done.items()}
    except TypeError as error:
        raise CheckpointError(
            f"{directory / file} was not written by this tool",
            "choose an empty destination directory",
        ) from error
    return Journal(directory, job, [str(name) for name in files], records)


def _header_sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        prefix = stream.read(_HEADER_LIMIT)
        return hashlib.sha256(prefix + stream.read(int.from_bytes(prefix, "little"))).hexdigest()


def _difference(key: str, found: object, wanted: object) -> str:
    if key == "sources":
        return "the source checkpoint's files"
    if key == "config_sha256":
        return "the source's config.json"
    if key == "choices" and isinstance(found, dict) and isinstance(wanted, dict):
        changed = [name for name in wanted if found.get(name) != wanted[name]]
        return ", ".join(f"{name} ({found.get(name)}, now {wanted[name]})" for name in changed)
    return f"{key} ({found}, now {wanted})"


def _without_times(sources: object) -> dict[str, object]:
    if not isinstance(sources, dict):
        raise TypeError("sources")
    return {
        name: {key: value for key, value in entry.items() if key != "mtime_ns"}
        for name, entry in sources.items()
    }
