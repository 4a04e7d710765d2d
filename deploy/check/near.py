"""The nearest known spelling of a word."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection

from glm5_ascend.deploy.check.command_line import read_json

_CLOSE = 0.75
_MISSING_COLON = re.compile(r'("[\w.-]+")\s+(?=["{\[\d]|true|false|null)')


def nearest(word: str, known: Collection[str], close: float = _CLOSE) -> str | None:
    """The known word that ``word`` is most likely meant to be; None where none is ``close``.

    Case, dashes and underscores count little; 1 is equality.
    """
    plain = {_plain(name): name for name in sorted(known)}
    if _plain(word) in plain:
        return plain[_plain(word)]
    found = difflib.get_close_matches(_plain(word), list(plain), 1, close)
    return plain[found[0]] if found else None


def _plain(word: str) -> str:
    return word.lower().replace("-", "_").strip("_")


def mended_json(text: str) -> dict[str, object] | None:
    """The object that broken JSON was meant to be; None where that is not plain.

    Single quotes, Python's True and None, a forgotten colon, and a comma at the end are put right.
    """
    tries = [text, _MISSING_COLON.sub(r"\1:", text)]
    tries += [re.sub(r",\s*([}\]])", r"\1", one) for one in tries]
    tries += [one.replace("'", '"') for one in tries]
    for pair in (("True", "true"), ("False", "false"), ("None", "null")):
        tries += [re.sub(rf"(?<![\"\w]){pair[0]}(?![\"\w])", pair[1], one) for one in tries]
    for one in tries:
        try:
            value = read_json(one)
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict):
            return value
    return None
