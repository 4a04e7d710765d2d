"""API keys of the clients, in the form of an nginx map: ``"Bearer KEY" NAME;``."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

from glm5_ascend.errors import Glm5Error
from glm5_ascend.files import read_text

FILE = "api_keys.map"
_HEAD = "# Keys of the clients; after a change: nginx -s reload. A line without # is one client.\n"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LINE = re.compile(r'\s*"Bearer [^"\\$\s]+"\s+([A-Za-z0-9][A-Za-z0-9_.-]{0,63})\s*;\s*(?:#.*)?')
_MOST = 1 << 20
# nginx compares without regard to case, and hexadecimal digits lose nothing by that.
_KEY_BYTES = 32


def known_clients(text: str, source: str = FILE) -> list[str]:
    """Names in a file of keys.

    Raises:
        Glm5Error: a line that is no key and no comment.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise Glm5Error(
                f"{source}: line {number} is no key", 'a line is: "Bearer KEY" client-name;'
            )
        found.append(match[1])
    return found


def check_names(names: Sequence[str]) -> None:
    """Raise ``Glm5Error`` for a name that a file of keys cannot hold."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise Glm5Error(f"{name!r} is no name of a client", "letters, digits and . _ -")


def add_keys(folder: Path, names: Sequence[str]) -> list[str]:
    """Make a key for each name that has none yet; the file is only readable by its owner.

    Returns:
        The names that got one.

    Raises:
        Glm5Error: a name that cannot be, or a file that is not in its form.
        OSError: the file cannot be read or written.
    """
    check_names(names)
    target = folder / FILE
    text = read_text(target, _MOST, "split it") if target.exists() else _HEAD
    known = known_clients(text, str(target))
    fresh = [name for name in dict.fromkeys(names) if name not in known]
    if not fresh:
        return []
    if not text.endswith("\n"):
        text += "\n"
    text += "".join(f'"Bearer {secrets.token_hex(_KEY_BYTES)}" {name};\n' for name in fresh)
    handle, temporary = tempfile.mkstemp(prefix=f".{FILE}.", dir=folder)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return fresh
