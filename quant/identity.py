"""What a job is: tool, recipe, plan and the identity of its source.

Two runs belong together if these are equal. Where they are not, the message says what differs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from glm5_ascend import __version__
from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.backend import CPU, Backend
from glm5_ascend.quant.files import read_bytes, refusals
from glm5_ascend.quant.folding import SEED
from glm5_ascend.quant.plan import Plan

_PREFIX_BYTES = 8
_WORDS = {
    "bytes": "its size",
    "mtime_ns": "its modification time",
    "header_sha256": "its header",
}


def describe_job(
    reader: CheckpointReader,
    plan: Plan,
    companions: Mapping[str, bytes],
    backend: Backend = CPU,
    cut: Mapping[str, object] = MappingProxyType({}),
) -> dict[str, object]:
    """What must be equal for a job to be resumed: tool, recipe, plan, source files.

    A source file is known by size, modification time and the SHA-256 of its header: hashing all of
    a large source would take as long as much of the work.

    Args:
        reader: the source checkpoint.
        plan: what is made of it.
        companions: content of the files that are copied.
        backend: what carries out the arithmetic, which decides the last bits of values.
        cut: what files were like of which only the header is left.

    Raises:
        CheckpointError: a file of the source cannot be read.
    """
    config = read_bytes(reader.directory / "config.json", "make this file readable")
    return {
        "tool": f"glm5-ascend {__version__}",
        "recipe": plan.recipe.as_dict(),
        "backend": backend.job,
        "seed": SEED if plan.recipe.rotate else None,
        "plan_sha256": plan.digest(),
        "config_sha256": hashlib.sha256(config).hexdigest(),
        "companions": {
            name: hashlib.sha256(content).hexdigest() for name, content in companions.items()
        },
        "sources": _identities(reader.files(), cut),
    }


def require_same_job(
    directory: Path, earlier: Mapping[str, object], job: Mapping[str, object]
) -> None:
    """Raise ``CheckpointError`` naming what differs from the job that wrote the directory."""
    differences = [
        text
        for key, wanted in job.items()
        if key != "plan_sha256" and earlier.get(key) != wanted
        for text in _differences(key, earlier.get(key), wanted)
    ]
    if not differences and earlier.get("plan_sha256") != job["plan_sha256"]:
        differences = ["how tensors are cut into files"]
    if differences:
        raise CheckpointError(
            f"{directory} holds the work of a run that differs in {differences[0]}"
            + (f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""),
            "repeat the command with the same source and options (copies of a source need its"
            " modification times: cp -p), or start anew with --overwrite",
        )


def require_unchanged(
    source: Path,
    job: Mapping[str, object],
    *,
    only: Container[str] | None = None,
    released: Container[str] = (),
) -> None:
    """Raise ``CheckpointError`` if a file of weights changed while the job was reading it.

    Args:
        source: the checkpoint.
        job: what was known of it.
        only: names to look at; None looks at all.
        released: names of files that were cut since.
    """
    known = job["sources"]
    if not isinstance(known, dict):
        raise TypeError("sources")
    before = {
        name: identity
        for name, identity in known.items()
        if (only is None or name in only) and name not in released
    }
    after = _identities(source / name for name in before)
    for text in _differences("sources", before, after):
        raise CheckpointError(
            f"{source} changed during the run: {text}",
            "start anew with --overwrite once nothing writes to the source",
        )


def _identities(
    files: Iterable[Path], cut: Mapping[str, object] = MappingProxyType({})
) -> dict[str, object]:
    return {file.name: _before_cut(_identity(file), cut.get(file.name)) for file in files}


def _before_cut(found: dict[str, object], earlier: object) -> dict[str, object]:
    """What the file was like, if it has the header of what it was like."""
    is_same = isinstance(earlier, dict) and earlier.get("header_sha256") == found["header_sha256"]
    return dict(earlier) if isinstance(earlier, dict) and is_same else found


def _identity(file: Path) -> dict[str, object]:
    with refusals(f"read {file}", "make this file readable"), open(file, "rb") as stream:
        status = os.fstat(stream.fileno())
        prefix = stream.read(_PREFIX_BYTES)
        header = prefix + stream.read(int.from_bytes(prefix, "little"))
    return {
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "header_sha256": hashlib.sha256(header).hexdigest(),
    }


def _differences(key: str, found: object, wanted: object) -> Iterator[str]:
    """Name what differs, in words that say where to look."""
    if key == "config_sha256":
        yield "the source's config.json"
    elif not isinstance(found, dict) or not isinstance(wanted, dict):
        yield f"{key} ({found}, now {wanted})"
    elif key == "recipe":
        changed = [name for name in wanted if found.get(name) != wanted[name]]
        yield ", ".join(f"{name} ({found.get(name)}, now {wanted[name]})" for name in changed)
    else:
        for name in sorted(found.keys() | wanted.keys()):
            if found.get(name) != wanted.get(name):
                yield f"the source's file {name}: {_change(found.get(name), wanted.get(name))}"


def _change(found: object, wanted: object) -> str:
    if found is None:
        return "it is new"
    if wanted is None:
        return "it is gone"
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return "its content changed"
    changed = [key for key in _WORDS if found.get(key) != wanted.get(key)]
    return " and ".join(_WORDS[key] for key in changed) + " changed"
