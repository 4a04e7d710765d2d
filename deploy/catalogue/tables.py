"""Read the catalogue's TOML files; every number in them names where it comes from."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from glm5_ascend.errors import Glm5Error

FOLDER = Path(__file__).parent
SCHEMA = 1


class CatalogueError(Glm5Error):
    """A name that the catalogue does not have, or a broken file of the catalogue."""


@cache
def read(file: str, folder: Path = FOLDER) -> dict[str, object]:
    """The parsed file ``file``; checks its schema number.

    Raises:
        CatalogueError: another schema.
    """
    table = tomllib.loads((folder / file).read_text(encoding="utf-8"))
    if table.get("schema") != SCHEMA:
        raise CatalogueError(
            f"{folder / file} has schema {table.get('schema')}, this program reads {SCHEMA}",
            "install catalogue and program from one version",
        )
    return table


def entries(table: dict[str, object], kind: str) -> dict[str, dict[str, object]]:
    """The entries ``[kind.name]`` of a file."""
    found = table[kind]
    if not isinstance(found, dict):
        raise TypeError(kind)
    return found


def sourced(name: str, entry: dict[str, object], numbers: tuple[str, ...]) -> dict[str, str]:
    """The sources of ``entry``: one for all, or one per number.

    Raises:
        CatalogueError: a number has none, or a source names no number.
    """
    given = entry.get("source")
    if isinstance(given, str):
        return dict.fromkeys(numbers, given)
    sources = dict(given) if isinstance(given, dict) else {}
    for key in numbers:
        if not sources.get(key):
            raise CatalogueError(f"{name}: {key} has no source", "say where the number is from")
    for key in sources.keys() - set(numbers):
        raise CatalogueError(f"{name}: a source for {key}, which is not there", "remove it")
    return sources


def pick(kind: str, name: str, known: list[str]) -> None:
    """Refuse a name that is not known, with the nearest that is."""
    import difflib

    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise CatalogueError(
        f"no {kind} {name!r} in the catalogue", f"{guess}known: {', '.join(known)}"
    )
