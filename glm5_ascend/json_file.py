"""Strict reading of small JSON files."""

from __future__ import annotations

import json
from pathlib import Path

from glm5_ascend.errors import ConfigError
from glm5_ascend.files import open_regular


def read_json_object(file: Path, *, hint: str = "download the file again") -> dict[str, object]:
    """Parse a JSON file that must hold an object; ``ConfigError`` names what is wrong with it.

    Args:
        file: the file.
        hint: what to do about wrong content.
    """
    try:
        with open_regular(file) as stream:
            text = stream.read().decode("utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot read {file}: {reason}", "give the directory of a Hugging Face checkpoint"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text", hint) from error
    try:
        value = json.loads(text, object_pairs_hook=no_duplicates)
    except ValueError as error:
        raise ConfigError(f"{file} is not valid JSON: {error}", hint) from error
    except RecursionError as error:
        raise ConfigError(f"{file} is nested too deeply", hint) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} does not hold a JSON object", hint)
    return value


def no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """``object_pairs_hook`` that refuses a key given twice, where json would keep the last."""
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} occurs twice in one object")
    return result
