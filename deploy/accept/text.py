"""What is wrong with a text whatever it was to say: broken characters, endless repetition."""

from __future__ import annotations

import re
import unicodedata

# Rows of these are drawn on purpose.
_RULES = "-=_*.#~ "
_RUN, _EXCLAMATIONS, _LEAST = 24, 8, 40
_REPEATS, _REPEATED_CHARS = 5, 60
_LETTERS_AT_LEAST = 0.3
_WORDS, _GRAM, _DISTINCT_AT_LEAST = 60, 4, 0.5


def garbled(text: str) -> str | None:
    """Why a text is no text, or None: ``!!!!``, rows of one character, signs instead of letters."""
    if re.search(rf"[!！]{{{_EXCLAMATIONS},}}", text):
        return "rows of exclamation marks"
    row = re.search(rf"([^\s{re.escape(_RULES)}])\1{{{_RUN},}}", text)
    if row:
        return f"a row of {row[1]!r}"
    if "\ufffd" in text:
        return "bytes that are no characters"
    signs = [char for char in text if not char.isspace() and char not in _RULES]
    if any(unicodedata.category(char) in ("Cc", "Co", "Cn") for char in signs):
        return "control characters"
    letters = sum(char.isalnum() for char in signs)
    if len(signs) >= _LEAST and letters < _LETTERS_AT_LEAST * len(signs):
        return f"{letters} letters among {len(signs)} signs"
    return None


def repeating(text: str) -> str | None:
    """What a text repeats without end, or None."""
    tail = text.rstrip()
    for period in range(1, len(tail) // _REPEATS + 1):
        count = max(_REPEATS, -(-_REPEATED_CHARS // period))
        unit = tail[-period:]
        if unit.strip(_RULES + "\n") and tail.endswith(unit * count):
            return f"{unit[:40]!r} {count} times and more"
    words = tail.split()
    grams = [tuple(words[n : n + _GRAM]) for n in range(len(words) - _GRAM + 1)]
    if len(words) >= _WORDS and len(set(grams)) < _DISTINCT_AT_LEAST * len(grams):
        return f"{len(grams) - len(set(grams))} of {len(grams)} groups of four words again"
    return None


def fault(text: str) -> str | None:
    """The first fault of a text, or None."""
    if not text.strip():
        return "nothing"
    return garbled(text) or repeating(text)
