"""Where keys, variables and flags went: the table ``moved.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def moved() -> dict[str, dict[str, Any]]:
    """The table by part: ``keys``, ``variables``, ``flags`` and others."""
    text = (Path(__file__).parent / "moved.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
