"""One ``vllm serve`` command: its variables, its model and its flags, to be read and changed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

# Short forms, from vLLM 0.23 to 0.30.
SHORT = {
    "-q": "--quantization",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-ep": "--enable-expert-parallel",
    "-asc": "--api-server-count",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
}
_FLAG = re.compile(r"--?[A-Za-z]")
_SCALES = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


@dataclass(frozen=True, slots=True)
class Option:
    """One flag with its words.

    Attributes:
        name: long form with dashes, without what follows a point: ``--attention-config``.
        values: the words behind it; empty for a switch.
        path: keys behind the name: ``("indexer_kv_dtype",)`` of
            ``--attention_config.indexer_kv_dtype int8``.
        spelled: the flag as written, without ``=value``.
        joined: written as ``--flag=value``.
        at: position of the flag in the words that were parsed; -1 for one that was added.
    """

    name: str
    values: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    spelled: str = ""
    joined: bool = False
    at: int = -1

    @property
    def words(self) -> list[str]:
        """The words on the command line."""
        spelled = self.spelled or ".".join((self.name, *self.path))
        return [f"{spelled}={self.values[0]}"] if self.joined else [spelled, *self.values]


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """A ``vllm serve`` command.

    Attributes:
        model: path or name of the checkpoint; None where the command names none.
        options: the flags in their order; of repeated ones the last counts, as in vLLM.
        env: variables that are set for it.
        stray: words that belong to no flag.
        program: the words in front of the model.
    """

    model: str | None
    options: tuple[Option, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    stray: tuple[str, ...] = ()
    program: tuple[str, ...] = ("vllm", "serve")

    @classmethod
    def parse(
        cls,
        words: Sequence[str],
        env: Mapping[str, str] | None = None,
        switches: Collection[str] = (),
    ) -> ServeCommand:
        """Read ``[NAME=VALUE…] vllm serve MODEL …``.

        Args:
            words: after the shell's expansion.
            env: variables that were set before.
            switches: long names of flags that take no value.

        Raises:
            ValueError: there is no ``serve`` in the words.
        """
        own = dict(env or {})
        start = 0
        while start < len(words) and _ASSIGNMENT.match(words[start]):
            name, _, value = words[start].partition("=")
            own[name] = value
            start += 1
        first = list(words).index("serve", start) + 1
        model, options, stray = _read(words, first, switches)
        return cls(model, tuple(options), own, tuple(stray), tuple(words[start:first]))

    @classmethod
    def build(
        cls, model: str, flags: Mapping[str, object], env: Mapping[str, str] | None = None
    ) -> ServeCommand:
        """Make a command of flags without dashes in front: ``{"max-model-len": 8192}``.

        True gives a switch, False its ``--no-`` form, None nothing, a mapping JSON, and a list
        several words.
        """
        options = [option for name, value in flags.items() if (option := _option(name, value))]
        return cls(model, tuple(options), dict(env or {}))

    def to_argv(self) -> list[str]:
        """The words of the command, without its variables."""
        flags = (word for option in self.options for word in option.words)
        return [*self.program, *self._positional, *flags]

    @property
    def _positional(self) -> list[str]:
        named = self.model is None or self.given("--model")
        return [*self.stray] if named else [str(self.model), *self.stray]

    def render(self) -> str:
        """The command for a POSIX shell, one item a line."""
        lines = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        lines.append(shlex.join([*self.program, *self._positional]))
        lines += [shlex.join(option.words) for option in self.options]
        return " \\\n  ".join(lines)

    def option(self, name: str) -> Option | None:
        """The last plain use of a flag, by its long name."""
        found = [option for option in self.options if option.name == name and not option.path]
        return found[-1] if found else None

    def given(self, *names: str) -> bool:
        """Whether one of the flags is there in any form."""
        return any(option.name in names for option in self.options)

    def text(self, name: str, default: str = "") -> str:
        """First word of a flag's value."""
        option = self.option(name)
        return option.values[0] if option and option.values else default

    def whole(self, name: str, default: int) -> int:
        """Value of a flag as an integer; ``default`` where it is absent or none (``4k`` is 4000).

        A value that is no number is a finding of its own, so it counts as absent here.
        """
        number = whole_number(self.text(name))
        return default if number is None else number

    def switch(self, name: str, default: bool = False) -> bool:
        """Whether a switch is on: the last of ``--x`` and ``--no-x`` decides."""
        negative = name.replace("--", "--no-", 1)
        found = [option for option in self.options if option.name in (name, negative)]
        if not found:
            return default
        return (found[-1].name == name) and found[-1].values[:1] not in (("False",), ("false",))

    def json(self, name: str) -> dict[str, Any]:
        """Value of a JSON flag, ``--flag.key value`` merged in; empty where it cannot be read."""
        merged: dict[str, Any] = {}
        for option in self.options:
            if option.name != name:
                continue
            if option.path:
                _put(merged, option.path, _scalar(" ".join(option.values)))
                continue
            try:
                value = read_json(option.values[0]) if option.values else {}
            except json.JSONDecodeError:
                value = {}
            if isinstance(value, dict):
                merged = value
        return merged

    def with_env(self, name: str, value: str | None) -> ServeCommand:
        """The command with a variable set, or without it for None."""
        env = {k: v for k, v in self.env.items() if k != name}
        return replace(self, env=env if value is None else env | {name: value})

    def without(self, *names: str) -> ServeCommand:
        """The command without these flags, in whatever form."""
        return replace(self, options=tuple(o for o in self.options if o.name not in names))

    def with_flag(self, name: str, value: object) -> ServeCommand:
        """The command with a flag set in the place of its last use, or at the end."""
        made = _option(name.removeprefix("--"), value)
        old = self.option(name)
        if made is None:
            return self.without(name)
        if old is None:
            return replace(self, options=(*self.options, made))
        kept = [o for o in self.options if o.name != name or o.path or o is old]
        made = replace(made, spelled=old.spelled, joined=old.joined, at=old.at)
        return replace(self, options=tuple(made if o is old else o for o in kept))

    def with_json(self, name: str, value: Mapping[str, Any]) -> ServeCommand:
        """The command with a JSON flag set; an empty one is left out, dotted forms are merged."""
        options = tuple(o for o in self.options if o.name != name or not o.path)
        plain = replace(self, options=options)
        return plain.with_flag(name, dict(value) or None)


def whole_number(text: str) -> int | None:
    """A number as vLLM reads it, ``4k`` for 4000 and ``4K`` for 4096; None for anything else."""
    match = re.fullmatch(r"(\d{1,15})([kmgKMG]?)", text.strip())
    return int(match[1]) * _SCALES.get(match[2], 1) if match else None


def read_json(text: str) -> Any:
    """``json.loads`` with one kind of error, for depth and for numbers of thousands of digits too.

    Raises:
        json.JSONDecodeError: the text is no JSON that can be read.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError) as error:
        raise json.JSONDecodeError("nested too deeply, or a number too long", "", 0) from error


def dump(value: object) -> str:
    """JSON without spaces, as commands carry it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def long_name(flag: str) -> str:
    """``-tp`` and ``--tensor_parallel_size`` as ``--tensor-parallel-size``; keys cut off."""
    name = flag.partition(".")[0]
    return SHORT.get(name, name.replace("_", "-") if name.startswith("--") else name)


def _read(
    words: Sequence[str], first: int, switches: Collection[str]
) -> tuple[str | None, list[Option], list[str]]:
    model: str | None = None
    options: list[Option] = []
    stray: list[str] = []
    position = first
    while position < len(words):
        word = words[position]
        if not _FLAG.match(word):
            if model is None and not options:
                model = word
            else:
                stray.append(word)
            position += 1
            continue
        flag, equals, value = word.partition("=")
        name = long_name(flag)
        path = tuple(flag.split(".")[1:])
        values = [value] if equals else []
        at, position = position, position + 1
        takes = not (equals or name in switches or name.startswith("--no-"))
        while takes and position < len(words) and not _FLAG.match(words[position]):
            values.append(words[position])
            position += 1
        options.append(Option(name, tuple(values), path, flag, bool(equals), at))
    if model is None and stray:
        model = stray.pop(0)
    if model is None:
        model = next((o.values[0] for o in options if o.name == "--model" and o.values), None)
    return model, options, stray


def _option(name: str, value: object) -> Option | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return Option(f"--{name}" if value else f"--no-{name}")
    if isinstance(value, Mapping):
        return Option(f"--{name}", (dump(value),))
    if isinstance(value, Iterable) and not isinstance(value, str):
        return Option(f"--{name}", tuple(str(item) for item in value))
    return Option(f"--{name}", (str(value),))


def _put(target: dict[str, Any], path: Sequence[str], value: object) -> None:
    *outer, last = path
    for key in outer:
        inner = target.setdefault(key, {})
        target = inner if isinstance(inner, dict) else {}
    if last.endswith("+"):
        known = target.get(last[:-1])
        more = value if isinstance(value, list) else [value]
        target[last[:-1]] = [*known, *more] if isinstance(known, list) else more
    else:
        target[last] = value


def _scalar(text: str) -> object:
    try:
        return read_json(text)
    except json.JSONDecodeError:
        return text
