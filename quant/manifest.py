"""Compare a directory with the manifest that was written beside its files; no torch."""

from __future__ import annotations

from pathlib import Path

from glm5_ascend.console import progress
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.files import sha256_of
from glm5_ascend.quant.journal import MANIFEST, FileRecord, read_manifest
from glm5_ascend.verify.findings import Condition


def check_manifest(directory: Path) -> list[Condition]:
    """Every file that differs in size or SHA-256 from its record, is missing, or has none.

    Equal manifests and no condition mean that two copies, on two nodes for instance, are equal.
    """
    try:
        records = read_manifest(directory)
    except CheckpointError as error:
        return [Condition("file-damaged", MANIFEST, f"({error.message})")]
    if records is None:
        return [Condition("manifest-missing", MANIFEST)]
    found: list[Condition] = []
    whole = {}
    for name, record in records.items():
        size = _size(directory / name)
        if size is None:
            found.append(Condition("file-missing", name))
        elif size != record.bytes:
            detail = f"has {size:,} bytes, not {record.bytes:,}"
            found.append(Condition("manifest-file", name, detail))
        else:
            whole[name] = record
    found += _hashed(directory, whole)
    weights = {path.name for path in directory.glob("*.safetensors")}
    return found + [Condition("manifest-extra", name) for name in sorted(weights - set(records))]


def _hashed(directory: Path, records: dict[str, FileRecord]) -> list[Condition]:
    with progress("hashing files", sum(record.bytes for record in records.values())) as advance:
        return [
            Condition("manifest-file", name, "has another SHA-256")
            for name, record in records.items()
            if sha256_of(directory / name, advance) != record.sha256
        ]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
