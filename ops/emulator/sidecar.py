"""KERNEL.toml: what ``glm5-ascend ops emulate`` has to know of a kernel.

Keys of the file: ``source``, ``kernel`` (the C++ function), ``core``, ``blocks``, ``reference``
("file.py:function"), ``inputs`` (the same, optional), ``absolute``, ``relative``, ``defines``,
``timeout`` and the tables ``arguments``. Paths are relative to the file's folder.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm5_ascend.errors import brief
from glm5_ascend.ops.emulator.abi import Role
from glm5_ascend.ops.emulator.build import CORES
from glm5_ascend.ops.emulator.errors import SidecarError

ROLES = tuple(role.name.lower() for role in Role if role is not Role.VALUE)
DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
)
FIELDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32")
_LIMITS = {
    f"{sign}int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if not sign else (0, 2**bits - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2} | {
    name: int(name.strip("uint")) // 8 for name in FIELDS if "int" in name
}
# A macro as -D takes it, and a function with namespaces and template arguments.
_DEFINE = re.compile(r"[A-Za-z_]\w*(\([^()]*\))?(=[^\x00-\x1f]*)?", re.ASCII)
_FUNCTION = re.compile(r"[A-Za-z_:][\w:<>,()*& +-]*", re.ASCII)
_TYPES: Mapping[Any, str] = {
    str: "text in quotes",
    int: "a whole number",
    (int, float): "a number",
    list: "a list in brackets",
}
VALUES = ("normal", "uniform", "zeros", "ones", "arange")
_REQUIRED = {"source": str, "kernel": str, "core": str, "arguments": list}
_OPTIONAL = {
    "blocks": int,
    "reference": str,
    "inputs": str,
    "absolute": (int, float),
    "relative": (int, float),
    "defines": list,
    "timeout": (int, float),
}


@dataclass(frozen=True, slots=True)
class Field:
    """A number of a value argument; a lone number is a structure of one field."""

    name: str
    dtype: str
    value: int | float


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the kernel: a buffer with ``role``, or a value with ``fields``."""

    name: str
    role: Role
    shape: tuple[int, ...] = ()
    dtype: str = ""
    values: str = "normal"
    size: int = 0  # bytes of a workspace
    fields: tuple[Field, ...] = ()

    @property
    def bytes(self) -> int:
        """Size in GM of a buffer."""
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype] if self.shape else self.size


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The checked content of a KERNEL.toml."""

    path: Path
    source: Path
    kernel: str
    core: str
    arguments: tuple[Argument, ...]
    blocks: int = 1
    reference: tuple[Path, str] | None = None
    inputs: tuple[Path, str] | None = None
    absolute: float = 0.0
    relative: float = 0.0
    defines: tuple[str, ...] = ()
    timeout: float = 60.0


def read(path: Path) -> Sidecar:
    """Read and check a KERNEL.toml.

    Raises:
        SidecarError: it cannot be read, a key is missing, unknown or of another type, or a file
            that it names is missing.
    """
    try:
        raw = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SidecarError(f"{path} cannot be read: {reason}", "name a KERNEL.toml") from None
    except tomllib.TOMLDecodeError as error:
        raise SidecarError(f"{path} is no TOML: {error}", "correct that line") from None
    check = _Checker(path)
    check.table(raw, _REQUIRED, _OPTIONAL, "the file")
    check.choice(raw["core"], CORES, "core")
    blocks = raw.get("blocks", 1)
    check.that(1 <= blocks <= 256, f"blocks is {blocks}", "take 1 to 256")
    check.that(
        bool(_FUNCTION.fullmatch(raw["kernel"])),
        f"kernel is {brief(raw['kernel'])}",
        "name the C++ function, with its namespace and template arguments",
    )
    for define in raw.get("defines", ()):
        check.that(
            isinstance(define, str) and bool(_DEFINE.fullmatch(define)),
            f"defines holds {brief(define)}",
            'write them as "NAME=VALUE"',
        )
    for key in ("absolute", "relative", "timeout"):
        value = raw.get(key, 1)
        good = 0 <= value <= _FLOAT32_MAX and (value > 0 or key != "timeout")
        check.that(good, f"{key} is {brief(value)}", "give a finite number above 0")
    arguments = tuple(
        _argument(check, each, index) for index, each in enumerate(raw["arguments"], 1)
    )
    check.names([argument.name for argument in arguments], "argument")
    return Sidecar(
        path=path,
        source=check.file(raw["source"], "source"),
        kernel=raw["kernel"],
        core=raw["core"],
        arguments=arguments,
        blocks=blocks,
        reference=check.function(raw.get("reference"), "reference"),
        inputs=check.function(raw.get("inputs"), "inputs"),
        absolute=float(raw.get("absolute", 0.0)),
        relative=float(raw.get("relative", 0.0)),
        defines=tuple(raw.get("defines", ())),
        timeout=float(raw.get("timeout", 60.0)),
    )


class _Checker:
    """Refuses what is wrong in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def that(self, holds: bool, what: str, hint: str) -> None:
        if not holds:
            raise SidecarError(f"{self._path}: {what}", hint)

    def choice(self, value: object, choices: Sequence[str], key: str) -> None:
        self.that(
            value in choices, f"{key} is {brief(value)}", f"choose one of {', '.join(choices)}"
        )

    def table(
        self,
        raw: object,
        required: Mapping[str, Any],
        optional: Mapping[str, Any],
        what: str,
    ) -> None:
        if not isinstance(raw, dict):
            raise SidecarError(f"{self._path}: {what} is no table", "write [[arguments]]")
        for key in required:
            self.that(key in raw, f"{what} lacks {key}", f"the keys are {', '.join(required)}")
        known = {**required, **optional}
        for key, value in raw.items():
            self.that(
                key in known,
                f"{what} has the unknown key {key}",
                f"the keys are {', '.join(known)}",
            )
            good = isinstance(value, known[key]) and not isinstance(value, bool)
            self.that(good, f"{key} of {what} is {brief(value)}", f"give {_TYPES[known[key]]}")

    def names(self, names: Sequence[str], what: str) -> None:
        for index, name in enumerate(names, 1):
            self.that(
                name.isidentifier(),
                f"{what} {index} has the name {brief(name)}",
                "take letters, digits and _, as for a parameter",
            )
            self.that(
                name not in names[: index - 1],
                f"two of the {what}s have the name {name}",
                "rename one",
            )

    def file(self, name: str, key: str) -> Path:
        path = self._path.parent / name
        self.that(path.is_file(), f"{key} names {path}, which is no file", "correct the name")
        return path

    def function(self, name: str | None, key: str) -> tuple[Path, str] | None:
        if name is None:
            return None
        file, colon, function = name.rpartition(":")
        self.that(bool(colon and file and function), f"{key} is {name!r}", "write file.py:function")
        return self.file(file, key), function


def _argument(check: _Checker, raw: object, index: int) -> Argument:
    what = f"argument {index}"
    if isinstance(raw, dict) and "fields" in raw:
        check.table(raw, {"name": str, "fields": list}, {}, what)
        fields = tuple(_field(check, each, f"a field of {raw['name']}") for each in raw["fields"])
        check.that(bool(fields), f"{what} has no fields", "name those of the structure")
        check.names([field.name for field in fields], "field")
        return Argument(raw["name"], Role.VALUE, fields=fields)
    if isinstance(raw, dict) and "value" in raw:
        return Argument(raw.get("name", ""), Role.VALUE, fields=(_field(check, raw, what),))
    if isinstance(raw, dict) and raw.get("role") == "workspace":
        check.table(raw, {"name": str, "role": str, "bytes": int}, {}, what)
        check.that(raw["bytes"] > 0, f"{what} has {raw['bytes']} bytes", "give it some")
        return Argument(raw["name"], Role.WORKSPACE, size=raw["bytes"])
    required = {"name": str, "role": str, "dtype": str, "shape": list}
    check.table(raw, required, {"values": str}, what)
    assert isinstance(raw, dict)
    check.choice(raw["role"], ROLES, f"role of {what}")
    check.choice(raw["dtype"], DTYPES, f"dtype of {what}")
    check.choice(raw.get("values", "normal"), VALUES, f"values of {what}")
    shape = raw["shape"]
    sizes = all(type(n) is int and n > 0 for n in shape)
    check.that(bool(shape) and sizes, f"shape of {what} is {brief(shape)}", "give positive sizes")
    return Argument(
        raw["name"],
        Role[raw["role"].upper()],
        tuple(shape),
        raw["dtype"],
        raw.get("values", "normal"),
    )


def _field(check: _Checker, raw: object, what: str) -> Field:
    check.table(raw, {"name": str, "dtype": str, "value": (int, float)}, {}, what)
    assert isinstance(raw, dict)
    check.choice(raw["dtype"], FIELDS, f"dtype of {what}")
    whole = isinstance(raw["value"], int) or raw["dtype"] == "float32"
    check.that(whole, f"value of {what} is {raw['value']}", "give a whole number, or a float dtype")
    least, most = _LIMITS.get(raw["dtype"], (-_FLOAT32_MAX, _FLOAT32_MAX))
    special = isinstance(raw["value"], float) and not math.isfinite(raw["value"])
    check.that(
        special or least <= raw["value"] <= most,
        f"value of {what} is {brief(raw['value'])}",
        f"{raw['dtype']} holds {least:g} to {most:g}",
    )
    return Field(raw["name"], raw["dtype"], raw["value"])
