"""The journal of a running job and the manifest of a finished one.

The journal says what the job is (source, choices, plan) and which files are complete. It is
replaced as a whole, atomically, after each file has been renamed into place; a kill in between
costs that one file, which comes out the same again. The manifest replaces it at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from glm5_ascend.checkpoint import write_text
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.files import names_in, read_bytes

JOURNAL = "quantize_journal.json"
MANIFEST = "quantize_manifest.json"


class DamagedRecord(CheckpointError):
    """A journal or manifest that no run can continue from."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is damaged: {reason}",
            "start anew with --overwrite, which replaces the files of the same job",
        )


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and SHA-256 of one complete output file."""

    bytes: int
    sha256: str


@dataclass(slots=True)
class Journal:
    """State of one job in its destination directory.

    ``job`` identifies the work; ``files`` are all names the job may write; ``done`` grows, and with
    ``--delete-source`` so does ``released``: source file to its SHA-256, empty if not wanted.
    ``is_closing`` says that all files are written and only the source's remain to be removed.
    """

    directory: Path
    job: dict[str, object]
    files: list[str]
    done: dict[str, FileRecord] = field(default_factory=dict)
    released: dict[str, str] = field(default_factory=dict)
    is_closing: bool = False

    def save(self) -> None:
        """Replace the journal on disk; returns once it is durable."""
        document: dict[str, object] = {
            "job": self.job,
            "files": self.files,
            "done": {name: asdict(self.done[name]) for name in sorted(self.done)},
        }
        if self.released:
            document |= {"released": self.released, "is_closing": self.is_closing}
        write_text(self.directory / JOURNAL, json.dumps(document, indent=1) + "\n")

    def record(self, file: str, record: FileRecord) -> None:
        """Note that ``file`` is complete; call it after the rename."""
        self.done[file] = record
        self.save()

    def release(self, file: str, digest: str) -> None:
        """Note that nothing needs a source file any more; call it before its data goes."""
        self.released[file] = digest
        self.save()

    def close(self) -> None:
        """Note that every output is written."""
        self.is_closing = True
        self.save()


def read_journal(directory: Path) -> Journal | None:
    """Return the journal of an unfinished job, None where there is none.

    Raises:
        CheckpointError: it cannot be read or is damaged.
    """
    document = _read(directory, JOURNAL)
    if document is None:
        return None
    journal = _parse(directory, JOURNAL, *map(document.get, ("job", "files", "done")))
    released = document.get("released", {})
    if not isinstance(released, dict):
        raise DamagedRecord(directory / JOURNAL, "a part of it is missing")
    journal.released = {str(name): str(digest) for name, digest in released.items()}
    journal.is_closing = document.get("is_closing") is True
    return journal


def resumable(directory: Path) -> Journal | None:
    """Return the journal of an unfinished job, or one made from the manifest of a finished one.

    Raises:
        CheckpointError: the record cannot be read or is damaged.
    """
    journal = read_journal(directory)
    if journal is not None:
        return journal
    document = _read(directory, MANIFEST)
    if document is None:
        return None
    written, weights = document.pop("written", None), document.pop("weights", None)
    for key in ("texts", "source_sha256", "repaired", "calibration", "source_deleted"):
        document.pop(key, None)
    return _parse(directory, MANIFEST, document, written, weights)


def without_source(directory: Path, source: Path) -> Journal | None:
    """The finished job of ``directory`` if it deleted its source and nothing of that came back.

    Raises:
        CheckpointError: the manifest cannot be read or is damaged.
    """
    names = (_read(directory, MANIFEST) or {}).get("source_deleted")
    if not isinstance(names, list) or any((source / str(name)).exists() for name in names):
        return None
    journal = resumable(directory)
    if journal is not None:
        journal.released = {str(name): "" for name in names}
    return journal


def write_manifest(
    journal: Journal,
    texts: Mapping[str, bytes],
    sources: Mapping[str, str],
    calibration: Mapping[str, object] | None = None,
) -> None:
    """Write what was made from what: job, sizes and SHA-256 of every file.

    Args:
        journal: the finished job.
        texts: content of the files beside the weights.
        sources: SHA-256 of each source file; empty if they were not hashed.
        calibration: what a calibration saw, if there was one.
    """
    small = {
        name: FileRecord(len(content), hashlib.sha256(content).hexdigest())
        for name, content in texts.items()
    }
    document = {
        **journal.job,
        "written": journal.files,
        "weights": {name: asdict(journal.done[name]) for name in sorted(journal.done)},
        "texts": {name: asdict(record) for name, record in sorted(small.items())},
    }
    if journal.released:
        document["source_deleted"] = sorted(journal.released)
    if sources:
        document["source_sha256"] = dict(sources)
    if calibration:
        document["calibration"] = dict(calibration)
    write_text(journal.directory / MANIFEST, json.dumps(document, indent=1) + "\n")


def manifest_entry(directory: Path, key: str) -> dict[str, object]:
    """An object of the manifest in ``directory``; empty where there is none."""
    entry = (_read(directory, MANIFEST) or {}).get(key)
    return entry if isinstance(entry, dict) else {}


def read_manifest(directory: Path) -> dict[str, FileRecord] | None:
    """Record of every file that the manifest lists; None where there is no manifest.

    Raises:
        CheckpointError: it cannot be read or is damaged.
    """
    document = _read(directory, MANIFEST)
    if document is None:
        return None
    weights, texts = document.get("weights"), document.get("texts", {})
    if not isinstance(weights, dict) or not isinstance(texts, dict):
        raise DamagedRecord(directory / MANIFEST, "a part of it is missing")
    return _records(directory / MANIFEST, {**weights, **texts})


def owned_files(directory: Path, job: Journal) -> set[str]:
    """Names an earlier run may have written into ``directory``; none if no run left its record.

    Where that record is damaged, the names are those that ``job`` would write: enough to start the
    same work anew, and never a file of another kind.
    """
    try:
        found = resumable(directory)
    except DamagedRecord:
        found = job
    if found is None:
        return set()
    names = {*found.files, JOURNAL, MANIFEST}
    return names | {f".{name}.part" for name in names}


def _read(directory: Path, file: str) -> dict[str, object] | None:
    if file not in names_in(directory, "choose a destination that you may read"):
        return None
    path = directory / file
    content = read_bytes(path, "make this file readable, or choose another destination")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(path, "not valid JSON") from error
    if not isinstance(document, dict):
        raise DamagedRecord(path, "not a JSON object")
    return document


def _parse(directory: Path, file: str, job: object, files: object, done: object) -> Journal:
    if not isinstance(job, dict) or not isinstance(files, list) or not isinstance(done, dict):
        raise DamagedRecord(directory / file, "a part of it is missing")
    records = _records(directory / file, done)
    return Journal(directory, job, [str(name) for name in files], records)


def _records(path: Path, entries: Mapping[str, object]) -> dict[str, FileRecord]:
    records = {}
    for name, entry in entries.items():
        match entry:
            case {"bytes": int(size), "sha256": str(digest)} if Path(name).name == name:
                records[name] = FileRecord(size, digest)
            case _:
                raise DamagedRecord(path, f"its entry of {name} is malformed")
    return records
