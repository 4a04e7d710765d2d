"""Object files in the cache of compiled kernels, renewed when any file that they include changes.

The compiler says which files those were. Their list is kept beside the object, so that the next
call knows without the compiler whether the object is current.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from glm5_ascend.ops.emulator.errors import KernelSourceError
from glm5_ascend.ops.native.build import locked, unfinished
from glm5_ascend.ops.native.compiler import FLAGS, Compiler

_ERROR = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$")


def compiled(tool: Compiler, source: Path, flags: Sequence[str], folder: Path) -> Path:
    """The object file of ``source`` in ``folder``, made where there is no current one.

    Raises:
        KernelSourceError: the compiler's first error.
    """
    command = (tool.command, tool.version, FLAGS, tuple(flags), str(source))
    stem = f"emulator-{source.stem}-{sha256(repr(command).encode()).hexdigest()[:16]}"
    current = _current(folder / f"{stem}.json", stem, folder)
    if current is not None:
        return current
    with locked(folder / f"{stem}.lock", folder):
        current = _current(folder / f"{stem}.json", stem, folder)
        return current or _compile(tool, source, flags, stem, folder)


def _current(note: Path, stem: str, folder: Path) -> Path | None:
    try:
        files = json.loads(note.read_text())
        target = folder / f"{stem}-{_digest(files)}.o"
    except (OSError, ValueError):
        return None
    return target if target.exists() else None


def _digest(files: Sequence[str]) -> str:
    digest = sha256()
    for file in files:
        digest.update(file.encode() + b"\0" + sha256(Path(file).read_bytes()).digest())
    return digest.hexdigest()[:16]


def _compile(tool: Compiler, source: Path, flags: Sequence[str], stem: str, folder: Path) -> Path:
    with unfinished(folder / f"{stem}.o") as part:
        rule = part.with_suffix(".d")
        words = (*tool.command, *FLAGS, *flags, "-MMD", "-MF", str(rule), "-MT", "object")
        _run((*words, "-c", str(source), "-o", str(part)), part.with_suffix(".log"))
        tool.check_wrote(part)
        text = rule.read_text().partition(":")[2].replace("\\\n", " ")
        files = [_plain(name) for name in re.split(r"(?<!\\)\s+", text) if name]
        target = folder / f"{stem}-{_digest(files)}.o"
        os.link(part, target.with_suffix(f".{os.getpid()}"))
        os.replace(target.with_suffix(f".{os.getpid()}"), target)
    with unfinished(folder / f"{stem}.json") as part:
        part.write_text(json.dumps(files))
    (folder / f"{stem}.o").unlink(missing_ok=True)
    return target


def _plain(name: str) -> str:
    """A file's name without what a rule for make adds."""
    return name.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$")


def _run(command: Sequence[str], log: Path) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=os.environ | {"LC_ALL": "C"},
    )
    if done.returncode == 0:
        return
    log.write_text(f"{shlex.join(command)}\n\n{done.stdout}{done.stderr}")
    found = next((m for line in done.stderr.splitlines() if (m := _ERROR.match(line))), None)
    first = (
        f"{found['file']}:{found['line']}: {found['text']}"
        if found
        else f"{command[0]} ends with exit code {done.returncode}"
    )
    raise KernelSourceError(f"the kernel does not compile: {first}", f"read {log}")
