"""Compiles C++ sources on demand into a cache that any number of processes may share.

Everything is named by a hash of what it was made from, and appears by renaming a finished file:
a file of the right name is a right file, whoever made it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from glm5_ascend import env
from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.native import compiler
from glm5_ascend.ops.native.compiler import Compiler

_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"


def cache_folder() -> Path:
    """Where compiled kernels are kept.

    Raises:
        BackendUnavailable: it does not exist and cannot be made.
    """
    named = env.read("GLM5_ASCEND_CACHE")
    folder = Path(named or os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        folder = folder.expanduser() if named else folder.expanduser() / "glm5-ascend"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # the latter where there is no home
        raise BackendUnavailable(
            f"no folder for compiled kernels: {error}", "set GLM5_ASCEND_CACHE to a writable folder"
        ) from None
    return folder


def build(
    name: str, sources: list[Path], headers: list[Path], flags: tuple[str, ...], include: Path
) -> Path:
    """Shared library of ``sources``, compiled where the cache does not hold it yet.

    ``headers`` are the files that any of the sources may include; ``include`` is the folder of
    those that are shared.

    Raises:
        BackendUnavailable: no compiler, no writable cache, or an error in a source.
    """
    tool = compiler.find()
    common = sha256(repr((tool.command, tool.version, compiler.FLAGS, flags)).encode())
    for header in headers:
        common.update(header.name.encode() + header.read_bytes())
    digests = {}
    for source in sources:
        own = common.copy()
        own.update(source.name.encode() + source.read_bytes())
        digests[source] = own.hexdigest()[:16]
    whole = sha256(" ".join(sorted(digests.values())).encode()).hexdigest()[:16]
    folder = cache_folder()
    library = folder / f"{name}-{whole}{_SUFFIX}"
    if not library.exists():
        with locked(folder / f"{name}-{whole}.lock", folder):
            if not library.exists():
                _make(tool, name, digests, library, flags, include)
    return library


def _make(
    tool: Compiler,
    name: str,
    digests: dict[Path, str],
    library: Path,
    flags: tuple[str, ...],
    include: Path,
) -> None:
    print(f"compiling CPU kernels: {name}", file=sys.stderr, flush=True)
    folder = library.parent
    objects = {s: folder / f"{s.stem}-{digest}.o" for s, digest in digests.items()}

    def one(source: Path) -> None:
        if objects[source].exists():
            return
        with unfinished(objects[source]) as part:
            tool.compile(source, part, flags, include)

    with ThreadPoolExecutor(processors()) as pool:
        list(pool.map(one, objects))
    with unfinished(library) as part:
        tool.link(list(objects.values()), part)


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A path in a folder of its own whose file becomes ``target``.

    Where that fails a log stays in the folder, until the next attempt at a file of this name with
    any hash.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    except OSError as error:
        raise _unwritable(target.parent, error) from None
    part = folder / target.name
    try:
        yield part
    except BaseException:
        if _logs(folder):
            _forget_failures(target, but=folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    os.replace(part, target)
    shutil.rmtree(folder)
    _forget_failures(target)


def _logs(folder: Path) -> list[Path]:
    return list(folder.glob("*.log"))


def _forget_failures(target: Path, but: Path | None = None) -> None:
    """Remove folders of failed attempts; those without a log may be another process's work."""
    name = re.escape(target.stem.rpartition("-")[0])
    failed = re.compile(rf"{name}-[0-9a-f]{{16}}{re.escape(target.suffix)}\.\w+")
    for folder in target.parent.iterdir():
        if folder != but and failed.fullmatch(folder.name) and _logs(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _unwritable(folder: Path, error: OSError) -> BackendUnavailable:
    return BackendUnavailable(
        f"cannot write compiled kernels to {folder}: {error.strerror}",
        "set GLM5_ASCEND_CACHE to a writable folder",
    )


@contextmanager
def locked(path: Path, folder: Path) -> Iterator[None]:
    """One process compiles, the others wait; the lock goes with its process."""
    try:
        file = path.open("w")
    except OSError as error:
        raise _unwritable(folder, error) from None
    with file:
        # A file system without locks lets two processes compile the same, which is only slow.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
