"""Commands to be judged: layouts and flags that are in use, and the mistakes made with them."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

from tools.oracle.trials import Record
from tools.oracle.words import read_command

CORPUS = Path(__file__).with_name("commands.toml")


def corpus() -> list[Record]:
    """Entries of ``commands.toml``: ``id``, ``about``, ``chip``, ``line`` and the parsed command.

    A line may use ``<NAME>`` for the parts defined at the top of the file.
    """
    with CORPUS.open("rb") as file:
        document: dict[str, Any] = tomllib.load(file)
    common = document["common"]
    entries = []
    for entry in document["command"]:
        line = " ".join(_expand(_expand(entry["line"], common), common).split())
        entries.append(
            {
                "id": entry["id"],
                "about": entry["about"],
                "chip": entry.get("chip", "A3"),
                "line": line,
                "command": read_command(shlex.split(line)),
            }
        )
    return entries


def _expand(line: str, common: dict[str, str]) -> str:
    return re.sub(r"<(\w+)>", lambda match: common[match.group(1)], line)
