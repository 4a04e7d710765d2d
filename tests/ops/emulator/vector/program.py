"""Vector instructions by name on an image of UB: what ``vector_program.h`` runs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from glm5_ascend.ops.emulator.build import Kernel, Library, build
from glm5_ascend.ops.emulator.launch import Options, inputs, launch, output
from glm5_ascend.ops.emulator.report import Report

MOST = 32
COUNT, FIRST, BITS, CURRENT = range(4)
# Element types in the order of ``emu::vec::Elem``, with the NumPy type that holds their bits.
TYPES: dict[str, str] = {
    "int4": "u1",
    "int8": "i1",
    "uint8": "u1",
    "int16": "i2",
    "uint16": "u2",
    "half": "f2",
    "bf16": "u2",
    "int32": "i4",
    "uint32": "u4",
    "float": "f4",
    "int64": "i8",
}
WIDTH = {"int4": 4} | {name: 8 * int(code[1]) for name, code in TYPES.items() if name != "int4"}
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class _Place(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint32), ("bytes", ctypes.c_uint32))


class _Command(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 24),
        ("dst_type", ctypes.c_int32),
        ("src_type", ctypes.c_int32),
        ("form", ctypes.c_int32),
        ("repeats", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("mask", ctypes.c_uint64 * 2),
        ("stride", ctypes.c_int32 * 6),
        ("mode", ctypes.c_int32),
        ("option", ctypes.c_int32),
        ("scalar", ctypes.c_uint64),
        ("places", _Place * 4),
        ("lengths", ctypes.c_int32 * 4),
        ("barrier", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int32), ("bytes", ctypes.c_int32), ("commands", _Command * MOST))


@dataclass(frozen=True)
class Command:
    """One instruction; fields without a meaning for it are ignored.

    ``stride``: block strides of dst, src0, src1, then their repeat strides. ``size``: bytes that a
    tensor is said to have from its address. ``scalar``: of the source type.
    """

    name: str
    dst_type: str
    src_type: str = ""
    form: int = COUNT
    count: int = 0
    mask: tuple[int, int] = (0, 0)
    repeats: int = 1
    stride: tuple[int, int, int, int, int, int] = (1, 1, 1, 8, 8, 8)
    mode: int = 0
    option: int = 0
    scalar: int | float = 0
    dst: int = 0
    src0: int = 0x2000
    src1: int = 0x4000
    extra: int = 0x6000
    size: int = 1 << 17
    lengths: tuple[int, int, int, int] = (0, 0, 0, 0)
    barrier: bool = True

    @property
    def source(self) -> str:
        """Type of the sources."""
        return self.src_type or self.dst_type


@dataclass
class Outcome:
    """The image that was left, the result words of each command, and the report."""

    image: Bytes
    results: np.ndarray
    report: Report = field(repr=False)

    @property
    def kinds(self) -> list[str]:
        """Classes of the findings."""
        return [finding.kind for finding in self.report.findings]


def bits_of(value: float, kind: str) -> int:
    """The bits of a scalar of an element type."""
    if kind == "bf16":
        return int(np.float32(value).view(np.uint32)) >> 16
    raw = np.array(value).astype(TYPES[kind])
    return int.from_bytes(raw.tobytes(), "little")


@cache
def library() -> Library:
    """The compiled kernel."""
    source = Path(__file__).with_name("vector_program.h")
    return build(source, [Kernel("vector_program", "vector_program", "vector")])


def _packed(command: Command) -> _Command:
    names = list(TYPES)
    places = [
        _Place(address, command.size)
        for address in (command.dst, command.src0, command.src1, command.extra)
    ]
    return _Command(
        command.name.encode(),
        names.index(command.dst_type),
        names.index(command.source),
        command.form,
        command.repeats,
        command.count,
        (ctypes.c_uint64 * 2)(*command.mask),
        (ctypes.c_int32 * 6)(*command.stride),
        command.mode,
        command.option,
        bits_of(command.scalar, command.source),
        (_Place * 4)(*places),
        (ctypes.c_int32 * 4)(*command.lengths),
        command.barrier,
        0,
    )


def run(commands: Sequence[Command], image: Bytes) -> Outcome:
    """Run at most ``MOST`` commands on ``image``, which stays as it is."""
    program = _Program(len(commands), len(image))
    for i, command in enumerate(commands):
        program.commands[i] = _packed(command)
    left = np.zeros_like(image)
    results = np.zeros((MOST, 4), np.uint64)
    report = launch(
        library(),
        "vector_program",
        [inputs("image", image), output("left", left), output("results", results), program],
        blocks=1,
        options=Options(isolated=False),
    )
    return Outcome(left, results[: len(commands)], report)
