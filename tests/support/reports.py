"""The reports of ``tests/data/deploy/reports.toml`` with their commands filled in."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[1] / "data" / "deploy" / "reports.toml"


def reports() -> list[dict[str, Any]]:
    """Every row; ``id`` is the number, with a letter where a number has several rows."""
    table = tomllib.loads(PATH.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = table["row"]
    seen: dict[int, int] = {}
    for row in rows:
        count = seen[row["number"]] = seen.get(row["number"], 0) + 1
        row["id"] = f"{row['number']}{'' if count == 1 else chr(ord('a') + count - 1)}"
        if "command" in row:
            row["command"] = _filled(row["command"], table["common"])
    return rows


def _filled(text: str, common: dict[str, str]) -> str:
    while found := re.search(r"<(\w+)>", text):
        text = text.replace(found[0], common[found[1]])
    return text
