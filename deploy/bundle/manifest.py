"""``SHA256SUMS`` of a bundle, in the form of ``sha256sum``; the images have a list of their own."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from glm5_ascend.errors import Glm5Error
from glm5_ascend.files import open_regular

SUMS = "SHA256SUMS"
IMAGES = "images"
_CHUNK = 1 << 20
_MOST = 1 << 20
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._+/-]*)")


@dataclass(frozen=True, slots=True)
class Compared:
    """Names of files that are not as the lists say; ``files`` counts what was compared."""

    files: int
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    unlisted: tuple[str, ...]
    digest: str

    @property
    def good(self) -> bool:
        """Nothing differs."""
        return not (self.missing or self.changed or self.unlisted)


def write_sums(folder: Path, mark: str) -> str:
    """List every file but the list, ``mark`` and the images' files; return the list's own sum.

    Of ``images/`` only its list is listed, so that this sum stands for the images too.
    """
    rows = []
    for name in sorted(files_of(folder)):
        inside = name.startswith(f"{IMAGES}/")
        if name in (SUMS, mark) or (inside and name != f"{IMAGES}/{SUMS}"):
            continue
        with open_regular(folder / name) as stream:
            rows.append(f"{_digest(stream)}  {name}\n")
    text = "".join(rows)
    target = folder / SUMS
    with target.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    return hashlib.sha256(text.encode()).hexdigest()


def files_of(folder: Path) -> Iterator[str]:
    """Paths below a folder of everything that is no folder."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in (*names, *links):
            yield (Path(place) / name).relative_to(folder).as_posix()


def compare(source: Path) -> Compared:
    """Compare a bundle, a folder or an archive, with its lists.

    Raises:
        Glm5Error: it has no list, or one that is in no form.
        OSError: it cannot be read.
    """
    try:
        found, lists = _read(source)
    except tarfile.TarError as error:
        raise Glm5Error(f"{source} is no whole archive: {error}", "copy it again") from error
    if SUMS not in lists:
        raise Glm5Error(f"{source} is no bundle: it has no {SUMS}", "name what bundle --out made")
    wanted = _rows(lists[SUMS], "", source)
    inner = f"{IMAGES}/{SUMS}"
    if inner in lists:
        wanted = {inner: found[inner]} | wanted
        wanted |= _rows(lists[inner], f"{IMAGES}/", source)
    return Compared(
        files=len(wanted),
        missing=tuple(sorted(wanted.keys() - found.keys())),
        changed=tuple(n for n in sorted(wanted.keys() & found.keys()) if found[n] != wanted[n]),
        unlisted=tuple(sorted(found.keys() - wanted.keys() - {SUMS})),
        digest=found[SUMS],
    )


def _read(source: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Sums of all files by name, and the texts of the lists."""
    found: dict[str, str] = {}
    lists: dict[str, str] = {}
    for name, stream in _contents(source):
        if name in (SUMS, f"{IMAGES}/{SUMS}") and stream is not None:
            raw = stream.read(_MOST + 1)
            if len(raw) > _MOST:
                raise Glm5Error(f"{source}: {name} is larger than 1 MiB", "make the bundle again")
            lists[name] = raw.decode("utf-8", "replace")
            found[name] = hashlib.sha256(raw).hexdigest()
        else:
            found[name] = "" if stream is None else _digest(stream)
    return found, lists


def _rows(text: str, prefix: str, source: Path) -> dict[str, str]:
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or ".." in match[2].split("/"):
            raise Glm5Error(
                f"{source}: line {number} of {prefix}{SUMS} is no sum", "make the bundle again"
            )
        found[prefix + match[2]] = match[1]
    return found


def _contents(source: Path) -> Iterator[tuple[str, BinaryIO | None]]:
    """Names and bytes; None for a link or anything else that is no file."""
    if source.is_dir():
        for name in files_of(source):
            path = source / name
            if path.is_symlink() or not path.is_file():
                yield name, None
                continue
            with open_regular(path) as stream:
                yield name, stream
        return
    with open_regular(source) as raw, tarfile.open(fileobj=raw, mode="r:") as archive:
        for member in archive:
            if member.isdir():
                continue
            inner = member.name.partition("/")[2] or member.name
            yield inner, archive.extractfile(member) if member.isfile() else None  # type: ignore[misc]


def _digest(stream: BinaryIO) -> str:
    found = hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        found.update(chunk)
    return found.hexdigest()
