"""Where the rows of a run on a GPU come from."""

from __future__ import annotations

import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_ROOT = Path(__file__).resolve().parents[2]
_STEADY = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit")
_CHANGING = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")


def provenance(command: Sequence[str], commit: str) -> Row:
    """What holds for a whole run; ``commit`` is used where there is no repository."""
    found = _output("git", "-C", str(_ROOT), "rev-parse", "HEAD")
    status = _output("git", "-C", str(_ROOT), "status", "--porcelain", "--untracked-files=no")
    return {
        "schema": 1,
        "source": "measured",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": (found or commit or "unknown").strip(),
        "dirty": bool(status) if found else None,
        "python": platform.python_version(),
        "command": shlex.join(command),
        "card": asked(_STEADY),
    }


def now() -> Row:
    """Clocks, temperature and power of this moment."""
    return {"now": asked(_CHANGING)}


def asked(names: Sequence[str]) -> dict[str, str]:
    """What nvidia-smi says of the first card; empty without it."""
    query = f"--query-gpu={','.join(names)}"
    text = _output("nvidia-smi", query, "--format=csv,noheader,nounits")
    values = [value.strip() for value in text.splitlines()[0].split(",")] if text else []
    return dict(zip(names, values, strict=False))


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
