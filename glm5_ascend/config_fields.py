"""Typed access to the keys of a ``config.json``; every refusal names the file and the key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from typing import NoReturn, TypeVar

from glm5_ascend.errors import ConfigError, brief

_T = TypeVar("_T", int, float)
# Of 32-bit signed numbers, which engines use for sizes.
_HIGHEST = 2**31 - 1
_RELEASE_HINT = "compare the file with the config.json of the GLM-5 release it comes from"


class Fields:
    """The keys of one JSON object, read with type and range checks.

    Args:
        raw: the parsed JSON object.
        source: where it was read, for messages.
    """

    def __init__(self, raw: Mapping[str, object], source: str) -> None:
        self._raw = raw
        self.source = source

    def __contains__(self, key: str) -> bool:
        return self._raw.get(key) is not None

    def fail(self, problem: str, hint: str = _RELEASE_HINT) -> NoReturn:
        """Raise ``ConfigError`` with the file's name in front."""
        raise ConfigError(f"{self.source}: {problem}", hint)

    def get(self, key: str) -> object:
        """The value as parsed, None where the key is absent or null."""
        return self._raw.get(key)

    def integer(
        self, key: str, *, low: int = 1, high: int = _HIGHEST, default: int | None = None
    ) -> int:
        """An integer of ``low`` to ``high``; absent is an error unless there is a default."""
        value = self._raw.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(f"`{key}` must be an integer, got {brief(value)}")
        if value < low:
            self.fail(f"`{key}` must be at least {low}, got {brief(value)}")
        if value > high:
            self.fail(f"`{key}` must be at most {high}, got {brief(value)}")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._raw.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(f"`{key}` must be a number, got {brief(value)}")
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if not math.isfinite(result) or result <= 0:
            self.fail(f"`{key}` must be finite and positive, got {brief(value)}")
        return result

    def flag(self, key: str, *, default: bool) -> bool:
        """A boolean."""
        value = self._raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(f"`{key}` must be true or false, got {brief(value)}")
        return value

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One token id or a list of them, each inside the vocabulary; absent gives ()."""
        value = self._raw.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for item in ids:
            if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < vocab_size:
                self.fail(
                    f"`{key}` holds {brief(item)}, not a token id below vocab_size {vocab_size}"
                )
        return tuple(ids)

    def strings(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, None where absent."""
        value = self._raw.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            self.fail(f"`{key}` must be a list of strings")
        return tuple(value)

    def constant(self, key: str, only: object) -> None:
        """Refuse any value but the one that the computation of GLM-5 has built in."""
        value = self._raw.get(key)
        if value is not None and (
            value != only or isinstance(value, bool) != isinstance(only, bool)
        ):
            self.fail(
                f"`{key}` is {brief(value)}; every GLM-5 release has {only!r},"
                " nothing else is built"
            )

    def nested(self, key: str) -> Fields:
        """A JSON object below ``key``."""
        value = self._raw.get(key)
        if not isinstance(value, Mapping):
            self.fail(f"`{key}` must be an object, got {brief(value)}")
        return Fields(value, f"{self.source}: {key}")

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Refuse keys outside ``known`` and name the one that was probably meant."""
        for key in self._raw:
            if key in known or key.startswith("_"):
                continue
            close = difflib.get_close_matches(key[:80], sorted(known), n=1, cutoff=0.8)
            meant = f"; did you mean `{close[0]}`?" if close else ""
            self.fail(
                f"unknown key `{key}`{meant}",
                "correct its name, or remove it if the model does not depend on it",
            )

    def _default(self, key: str, default: _T | None) -> _T:
        if default is None:
            self.fail(f"missing key `{key}`")
        return default
