"""Calibration documents out of a user's file: JSON lines or plain text, read strictly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.errors import Glm5Error, brief
from glm5_ascend.files import open_regular

_FORMS = '{"text": …}, {"messages": [{"role": …, "content": …}, …]} or {"prompt": …}'
_HINT = f"every line is one JSON object: {_FORMS}"
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_KEYS = ("text", "messages", "prompt")

Message = dict[str, object]


@dataclass(frozen=True, slots=True)
class Document:
    """Plain ``text``, or ``messages`` for the chat template; a prompt is one user message that
    ends where the assistant's answer begins."""

    text: str = ""
    messages: tuple[Message, ...] = ()
    is_prompt: bool = False


def read_documents(file: Path) -> list[Document]:
    """Documents of a file: JSON lines by its suffix, otherwise one text.

    Args:
        file: ``.jsonl``, ``.ndjson`` or ``.json`` holds one JSON object per line; any other file
            is plain UTF-8 text.

    Raises:
        Glm5Error: it cannot be read, holds nothing, or a line is malformed; the message has the
            line's number.
    """
    text = _read_text(file)
    if file.suffix.lower() not in _JSON_SUFFIXES:
        documents = [Document(text)] if text.strip() else []
    else:
        documents = list(_parse_lines(file, text))
    if not documents:
        raise Glm5Error(f"{file} holds no text to calibrate with", "give a file with documents")
    return documents


def _read_text(file: Path) -> str:
    try:
        with open_regular(file) as stream:
            content = stream.read()
    except OSError as error:
        raise Glm5Error(
            f"cannot read {file}: {error.strerror or error}", "give a text or JSONL file"
        ) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Glm5Error(f"{file}, line {line}: not UTF-8 text", "convert the file") from error


def _parse_lines(file: Path, text: str) -> Iterator[Document]:
    # Not splitlines(): JSON strings may hold U+2028 and its like.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _parse_line(f"{file}, line {number}", line)


def _parse_line(where: str, line: str) -> Document:
    try:
        entry = json.loads(line)
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Glm5Error(f"{where}: half of a surrogate pair is no text", _HINT) from error
    except (ValueError, RecursionError) as error:
        raise Glm5Error(f"{where}: not valid JSON", _HINT) from error
    if not isinstance(entry, dict):
        raise Glm5Error(f"{where}: {brief(entry)} is not an object", _HINT)
    given = [key for key in _KEYS if key in entry]
    if len(given) != 1:
        found = " and ".join(given) if given else f"only {brief(sorted(map(str, entry)))}"
        raise Glm5Error(f"{where}: one of {', '.join(_KEYS)} is needed, it has {found}", _HINT)
    value = entry[given[0]]
    if given[0] == "messages":
        return Document(messages=tuple(_messages(where, value)))
    if not isinstance(value, str) or not value.strip():
        raise Glm5Error(f"{where}: {given[0]} must be text, got {brief(value)}", _HINT)
    if given[0] == "text":
        return Document(value)
    return Document(messages=({"role": "user", "content": value},), is_prompt=True)


def _messages(where: str, value: object) -> Iterator[Message]:
    if not isinstance(value, list) or not value:
        raise Glm5Error(f"{where}: messages must be a list of messages, got {brief(value)}", _HINT)
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Glm5Error(f"{where}: message {number} has no role", _HINT)
        if not isinstance(message.get("content"), str | list | None):
            raise Glm5Error(
                f"{where}: content of message {number} is {brief(message.get('content'))}", _HINT
            )
        yield message
