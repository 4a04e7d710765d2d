"""From times per weight to the core-hours of a whole release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tools.quant_bench.cases import Case, Release

Row = dict[str, Any]
# What is written is hashed while it is written, and the file and its data when it is read back.
HASHES = 3


def whole(release: Release, rows: Sequence[Row], rates: Mapping[str, float]) -> Row:
    """Modelled core-hours of a release by part of the model, and of hashing, writing, reading back.

    The times of the cases include reading the source. The floor is the bytes of source and output
    over the bandwidth of copying memory.
    """
    hours: Counter[str] = Counter()
    for case in release.cases:
        nanoseconds = time_of(case, rows)["ns"]
        for part, count in case.parts.items():
            hours[part] += count * nanoseconds / 3.6e12
    output = release.output_bytes
    return {
        "kind": "release",
        "source": "modelled",
        "release": release.name,
        "scheme": "w4a8",
        "weights": sum(case.total for case in release.cases),
        "source_bytes": release.source_bytes,
        "output_bytes": output,
        "parts": dict(hours),
        "hash_hours": HASHES * output / rates["hash"] / 3600,
        "write_hours": output / rates["write"] / 3600,
        "read_back_hours": output / rates["read"] / 3600,
        "floor_hours": (release.source_bytes + output) / rates["copy"] / 3600,
    }


def total(row: Row) -> float:
    """Core-hours of a release's row."""
    files = row["hash_hours"] + row["write_hours"] + row["read_back_hours"]
    return float(sum(row["parts"].values()) + files)


def time_of(case: Case, rows: Sequence[Row]) -> Row:
    """The row of a case, or that of its twin with a BF16 source.

    Raises:
        LookupError: neither was measured.
    """
    for dtype in (case.dtype, "BF16"):
        for row in rows:
            same = (row.get("shape"), row.get("scheme"), row.get("case"), row.get("source_dtype"))
            if same == (list(case.step.shape), case.step.scheme.value, case.name, dtype):
                return row
    raise LookupError(f"{case.name} {case.step.shape} was not measured")
