"""Reads a shell script as far as serve commands need: words, variables, heredocs, functions.

Loops, conditions and command substitution are not executed: their commands are read once, and what
a substitution would give stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from glm5_ascend.errors import Glm5Error

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_VARIABLE = re.compile(rf"\$(?:\{{({_NAME})(?::?[-=]([^}}]*))?\}}|({_NAME}))")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_ENDS = (";", "&", "|", "\n")
_LONGEST = 128 << 10  # MAX_ARG_STRLEN
_SKIPPED = ("then", "do", "else", "{", "(", "time", "nohup", "exec", "sudo", "env", "setsid", "if")


class ScriptError(Glm5Error):
    """A script that no shell runs to its end."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word: what it means, how it is written, and where."""

    value: str
    raw: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command with the variables that are set when it runs.

    Attributes:
        words: without leading assignments.
        env: exported and leading assignments, in that order.
        line: of its first word, counted from 1.
        breaks: lines where blanks follow a backslash at the end.
        origin: per variable, where its assignment stands in the text.
    """

    words: tuple[Word, ...]
    env: dict[str, str]
    line: int
    breaks: tuple[int, ...]
    origin: dict[str, tuple[int, int]] = field(default_factory=dict)


def commands(text: str) -> Iterator[Simple]:
    """Every simple command of a script, in its order.

    Raises:
        ScriptError: a quote is never closed, or variables that hold each other grow beyond what
            Linux takes as a word.
    """
    values: dict[str, str] = {}
    exported: dict[str, str] = {}
    origin: dict[str, tuple[int, int]] = {}
    for words, breaks in _split(text):
        expanded = [part for word in words for part in _split_value(word, values)]
        while expanded and expanded[0].raw in _SKIPPED:
            expanded = expanded[1:]
        own: dict[str, str] = {}
        is_export = bool(expanded) and expanded[0].value in ("export", "declare", "set", "local")
        rest = expanded[1:] if is_export else expanded
        while rest and (match := _ASSIGNMENT.fullmatch(rest[0].value)) and _names(rest[0].raw):
            own[match[1]] = match[2]
            origin[match[1]] = (rest[0].start, rest[0].end)
            rest = rest[1:]
        if is_export or not rest:
            values |= own
            if is_export:
                named = [w.value for w in rest if w.value in values]
                exported |= own | {name: values[name] for name in named}
            elif own:
                exported |= {k: v for k, v in own.items() if k in exported}
            continue
        if rest[0].value == "unset":
            for word in rest[1:]:
                exported.pop(word.value, None)
        line = text.count("\n", 0, rest[0].start) + 1
        yield Simple(tuple(rest), {**exported, **own}, line, breaks, dict(origin))


def _names(raw: str) -> bool:
    return re.match(rf"{_NAME}=", raw) is not None


def _split_value(word: Word, values: dict[str, str]) -> list[Word]:
    """The word with its variables; one that is a bare variable becomes as many as it holds."""
    whole = _expand(word, values)
    if not _VARIABLE.fullmatch(word.raw) or not any(c.isspace() for c in whole.value):
        return [whole]
    return [Word(part, word.raw, word.start, word.end) for part in whole.value.split()]


def _expand(word: Word, values: dict[str, str]) -> Word:
    size = 0

    def value(match: re.Match[str]) -> str:
        nonlocal size
        name = match[1] or match[3]
        found = values.get(name, match[0] if match[2] is None else match[2])
        size += len(found)
        if size > _LONGEST:
            raise ScriptError(
                f"variable {name} makes a word of more than {_LONGEST >> 10} KiB",
                "shorten it: Linux starts no command with such a word",
            )
        return found

    if "\0" not in word.value:
        return word
    # A NUL marks a dollar sign that the shell expands.
    shown = word.value.replace("\0", "$")
    return Word(_VARIABLE.sub(value, shown), word.raw, word.start, word.end)


def _split(text: str) -> Iterator[tuple[list[Word], tuple[int, ...]]]:
    """Words of each command; comments, heredocs and redirections are left out."""
    words: list[Word] = []
    breaks: list[int] = []
    position, size = 0, len(text)
    pending: list[str] = []
    while position < size:
        char = text[position]
        if text.startswith("\\\n", position):
            position += 2
        elif char == "\\" and (blank := re.compile(r"\\[ \t]+\n").match(text, position)):
            breaks.append(text.count("\n", 0, position) + 1)
            position = blank.end() - 1
        elif char in " \t\r":
            position += 1
        elif char == "#":
            position = _line_end(text, position)
        elif heredoc := _HEREDOC.match(text, position):
            pending.append(heredoc[2])
            position = heredoc.end()
        elif char in _ENDS:
            if words:
                yield words, tuple(breaks)
            words, breaks = [], []
            position += 1
            if char == "\n":
                for mark in pending:
                    found = re.compile(rf"^[ \t]*{mark}[ \t]*$", re.MULTILINE).search(
                        text, position
                    )
                    position = found.end() if found else size
                pending = []
        elif char in "<>" or (
            char.isdigit() and re.match(r"\d[<>]", text[position : position + 2])
        ):
            redirect = re.compile(r"\d?[<>]+&?\s*\S*").match(text, position)
            position = redirect.end() if redirect else position + 1
        elif char in "()":
            position += 1
        else:
            word = _word(text, position)
            words.append(word)
            position = word.end
    if words:
        yield words, tuple(breaks)


def _line_end(text: str, position: int) -> int:
    found = text.find("\n", position)
    return len(text) if found < 0 else found


def _word(text: str, start: int) -> Word:
    parts: list[str] = []
    position, size = start, len(text)
    while position < size:
        char = text[position]
        if char == "'":
            end = text.find("'", position + 1)
            if end < 0:
                raise _unclosed(text, position)
            parts.append(text[position + 1 : end])
            position = end + 1
        elif char == '"':
            position = _quoted(text, position + 1, parts)
        elif text.startswith("\\\n", position):
            position += 2
        elif char == "\\" and re.match(r"\\[ \t]+\n", text[position : position + 80]):
            break
        elif char == "\\" and position + 1 < size:
            parts.append(text[position + 1])
            position += 2
        elif text.startswith("$(", position):
            end = _substitution(text, position)
            parts.append(text[position:end])
            position = end
        elif char == "$":
            end = text.find("}", position) + 1 if text.startswith("${", position) else position + 1
            end = end or position + 1
            parts.append("\0" + text[position + 1 : end])
            position = end
        elif char in " \t\r\n;&|<>()":
            break
        else:
            parts.append(char)
            position += 1
    position = max(position, start + 1)
    return Word("".join(parts), text[start:position], start, position)


def _unclosed(text: str, position: int) -> ScriptError:
    line = text.count("\n", 0, position) + 1
    return ScriptError(f"the quote that opens in line {line} is never closed", "close it")


def _quoted(text: str, position: int, parts: list[str]) -> int:
    first = position - 1
    while position < len(text) and text[position] != '"':
        char = text[position]
        if char == "\\" and position + 1 < len(text) and text[position + 1] in '"\\$`\n':
            parts.append("" if text[position + 1] == "\n" else text[position + 1])
            position += 2
        elif text.startswith("$(", position):
            end = _substitution(text, position)
            parts.append(text[position:end])
            position = end
        else:
            parts.append("\0" if char == "$" else char)
            position += 1
    if position >= len(text):
        raise _unclosed(text, first)
    return position + 1


def _substitution(text: str, position: int) -> int:
    depth = 0
    for index in range(position + 1, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    return len(text)
