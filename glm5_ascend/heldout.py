"""Held-out evaluation text: standard library packages the small model never saw in training."""

from __future__ import annotations

import sysconfig
from pathlib import Path

HELDOUT_PACKAGES: tuple[str, ...] = ("email", "http", "json")


def heldout_files() -> list[Path]:
    """Return the held-out source files of the running Python in a fixed (sorted) order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files: list[Path] = []
    for package in HELDOUT_PACKAGES:
        found = [p for p in (root / package).rglob("*.py") if "__pycache__" not in p.parts]
        files.extend(sorted(found, key=lambda p: p.relative_to(root).as_posix()))
    return files


def heldout_text(min_bytes: int) -> bytes:
    """Concatenate held-out sources in sorted order until at least ``min_bytes`` are collected.

    Whole files only, so the result may be longer than asked for. ``min_bytes=0`` returns every
    held-out file. Raises ``ValueError`` if the running Python has less text than asked for.
    """
    parts: list[bytes] = []
    size = 0
    for path in heldout_files():
        data = path.read_bytes().replace(b"\r\n", b"\n")
        parts.append(data)
        size += len(data)
        if 0 < min_bytes <= size:
            break
    if size == 0 or size < min_bytes:
        raise ValueError(f"only {size} bytes of held-out standard library text, {min_bytes} wanted")
    return b"".join(parts)
