"""Changes a command inside its file: only the words that differ, everything else as it was."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import tempfile
from pathlib import Path

from glm5_ascend.deploy.check.command_line import Option, ServeCommand
from glm5_ascend.deploy.check.shell import Word
from glm5_ascend.deploy.check.sites import Site
from glm5_ascend.errors import Glm5Error

Edit = tuple[int, int, str]


def patched(text: str, sites: list[tuple[Site, ServeCommand]]) -> str:
    """The text with each site's command changed to the given one.

    Raises:
        Glm5Error: a change concerns words that do not stand in the text as they are meant.
    """
    edits: set[Edit] = set()
    for site, command in sites:
        if command != site.command:
            edits |= set(_edits(text, site, command))
    result, end = [], len(text)
    for first, last, new in sorted(edits, reverse=True):
        if last > end:
            raise Glm5Error(
                f"{site.place}: two commands share words that would have to differ",
                "use --fix and change the file by hand",
            )
        result += [text[last:end], new]
        end = first
    return "".join([text[:end], *reversed(result)])


def _edits(text: str, site: Site, command: ServeCommand) -> list[Edit]:
    if not site.words:
        raise Glm5Error(
            f"{site.place}: this kind of file is not changed in place",
            "use --fix and change the file by hand",
        )
    edits = _env_edits(text, site, command)
    before = {option.at: option for option in site.command.options}
    after = {option.at: option for option in command.options if option.at >= 0}
    for at, option in before.items():
        new = after.get(at)
        if new == option:
            continue
        first, last = site.words[at], site.words[at + len(option.words) - 1]
        if new is None:
            edits.append((_gap(text, site.words, at), last.end, ""))
        else:
            edits.append((first.start, last.end, _shown(first, option, new)))
    for word in set(site.command.stray) - set(command.stray):
        place = next(index for index, one in enumerate(site.words) if one.value == word)
        edits.append((_gap(text, site.words, place), site.words[place].end, ""))
    added = [option for option in command.options if option.at < 0]
    if added:
        end = site.words[-1].end
        joint = _joint(text, site.words)
        edits.append((end, end, "".join(joint + shlex.join(o.words) for o in added)))
    return edits


def _shown(first: Word, old: Option, new: Option) -> str:
    words = [word if word.startswith("-") else shlex.quote(word) for word in new.words]
    if new.spelled == old.spelled and not new.joined:
        words[0] = first.raw
    return " ".join(words)


def _gap(text: str, words: tuple[Word, ...], index: int) -> int:
    """Start of the blanks in front of a word, continued lines included."""
    return words[index - 1].end if index else words[index].start


def _joint(text: str, words: tuple[Word, ...]) -> str:
    gaps = [text[a.end : b.start] for a, b in itertools.pairwise(words)]
    broken = [gap for gap in gaps if "\n" in gap]
    return broken[-1] if broken else " "


def _env_edits(text: str, site: Site, command: ServeCommand) -> list[Edit]:
    old, new = site.command.env, command.env
    edits: list[Edit] = []
    for name in old.keys() - new.keys():
        first, last = _origin(site, name)
        line = re.compile(r"[ \t]*(?:export[ \t]+)?$").search(text[:first])
        start = line.start() if line else first
        alone = (start == 0 or text[start - 1] == "\n") and text[last : last + 1] in ("\n", "")
        edits.append((start, last + 1, "") if alone else (first, last, ""))
    for name in old.keys() & new.keys():
        if old[name] != new[name]:
            edits.append((*_origin(site, name), f"{name}={shlex.quote(new[name])}"))
    added = [f"{name}={shlex.quote(new[name])} " for name in new if name not in old]
    if added and not site.origin and site.command.env:
        _origin(site, next(iter(added)))
    if added:
        start = site.words[0].start
        edits.append((start, start, "".join(added)))
    return edits


def _origin(site: Site, name: str) -> tuple[int, int]:
    if name not in site.origin:
        raise Glm5Error(
            f"{site.place}: variable {name.split('=')[0]} is not set in the text of the script",
            "use --fix and change the file by hand",
        )
    return site.origin[name]


def write_with_backup(path: Path, text: str) -> Path:
    """Replace a file, keeping the old one beside it as ``.bak``; return the copy's path.

    An earlier copy stays: the next one is ``.bak1`` and so on. A link stays: what it leads to is
    replaced.
    """
    path = path.resolve()
    backup = _keep(path, path.read_bytes())
    _write(path, text.encode("utf-8"), path)
    return backup


def _keep(path: Path, content: bytes) -> Path:
    """Write the content to the first name that is free."""
    for number in itertools.count():
        backup = path.with_name(f"{path.name}.bak{number or ''}")
        try:
            with open(backup, "xb") as stream:
                stream.write(content)
                os.fsync(stream.fileno())
        except FileExistsError:
            continue
        except BaseException:
            backup.unlink(missing_ok=True)
            raise
        backup.chmod(path.stat().st_mode & 0o7777)
        return backup
    raise AssertionError("there is always another number")


def _write(target: Path, content: bytes, like: Path) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(name, like.stat().st_mode & 0o7777)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
