"""Names the cause of a failed run from its log."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_MEMORY = re.compile(
    r"Actual usage:? (?:is )?(?P<weights>[\d.]+) GiB for weights?,"
    r" (?P<activation>[\d.]+) GiB for peak activation, (?P<other>[\d.]+) GiB for non-torch memory"
    r"(?:, (?:and )?(?P<graph>[\d.]+) GiB for \w+ ?graph memory)?"
    r".*?Current KV cache memory[^\d]*(?P<cache>[\d.]+) GiB",
    re.IGNORECASE,
)
_WIDEST = 400


@dataclass(frozen=True, slots=True)
class Cause:
    """One known failure and where it is in the log.

    Attributes:
        name: key of the table.
        line: first line that says so, counted from 1.
        text: that line, cut.
        count: lines that say so.
    """

    name: str
    line: int
    text: str
    cause: str
    remedy: str
    source: str
    count: int

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {field: getattr(self, field) for field in self.__slots__}


@cache
def failures() -> dict[str, dict[str, Any]]:
    """The table of known texts."""
    text = (Path(__file__).parent / "failures.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def causes(lines: Iterable[str]) -> list[Cause]:
    """Known failures in the order of their first line.

    A symptom that follows from others is left out where there are others. A line counts for the
    first text of the table that it holds.
    """
    patterns = {name: re.compile(row["text"]) for name, row in failures().items()}
    first: dict[str, tuple[int, str, dict[str, str]]] = {}
    counts: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        for name, pattern in patterns.items():
            match = pattern.search(line)
            if match is None:
                continue
            groups = {key: value or "?" for key, value in match.groupdict().items()}
            first.setdefault(name, (number, line.strip()[:_WIDEST], groups))
            counts[name] = counts.get(name, 0) + 1
            break
    found = [_cause(name, *first[name], counts[name]) for name in first]
    primary = [cause for cause in found if not failures()[cause.name].get("secondary")]
    return sorted(primary or found, key=lambda cause: cause.line)


def _cause(name: str, line: int, text: str, groups: dict[str, str], count: int) -> Cause:
    row = failures()[name]
    cause, remedy = row["cause"], row["remedy"]
    for key, value in groups.items():
        cause, remedy = (part.replace(f"{{{key}}}", value) for part in (cause, remedy))
    return Cause(name, line, text, cause, remedy, row["source"], count)


def memory_line(lines: Iterable[str]) -> dict[str, float]:
    """GiB per part that the engine reports after loading; empty where the log has no such line."""
    for line in lines:
        match = _MEMORY.search(line)
        if match:
            return {k: float(v) for k, v in match.groupdict().items() if v}
    return {}
