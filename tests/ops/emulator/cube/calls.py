"""One instruction on images of memories: ``instructions.cpp`` from Python."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glm5_ascend.ops.emulator.build import Kernel, Library, build
from glm5_ascend.ops.emulator.launch import Buffer, Options, inout, inputs, launch
from glm5_ascend.ops.emulator.report import Report

SOURCE = Path(__file__).with_name("instructions.cpp")
OPS = (
    "count",
    "blocks",
    "pad_in",
    "pad_out",
    "nz",
    "load_2d",
    "load_transposed",
    "load_3d",
    "fill",
    "mmad",
    "mmad_bias",
    "fix",
    "fix_vector",
    "co12",
    "co12_vector",
    "old_pad_in",
    "old_pad_out",
)
TYPES = ("int8", "half", "bf16", "float", "int32", "int4", "uint8")
POSITIONS = {"GM": 0, "L1": 1, "L0A": 2, "L0B": 4, "BT": 6, "L0C": 7, "UB": 9, "FB": 13}
ATOMICS = {"half": 1, "bf16": 2, "float": 3, "int32": 4, "int8": 5}
ND, NZ = 1, 0


class _Image(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ("position", "bytes", "address", "reserved")]


class _Call(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_int32) for n in ("op", "type", "other_type", "config")),
        *((n, _Image) for n in ("src", "second", "third", "dst")),
        ("p", ctypes.c_int32 * 20),
        ("q", ctypes.c_uint64),
    ]


@dataclass(frozen=True)
class At:
    """The first bytes of a memory, and where in them a tensor starts."""

    memory: str
    image: np.ndarray
    address: int = 0


NOTHING = At("GM", np.zeros(64, np.uint8))


@functools.cache
def library() -> Library:
    """The compiled cases."""
    kernels = [Kernel(f"on_{core}", "one_instruction", core) for core in ("cube", "vector")]
    return build(SOURCE, kernels)


def run(
    op: str,
    dst: At,
    src: At,
    params: Sequence[int],
    *,
    dtype: str = "half",
    other: str | None = None,
    config: int = 0,
    second: At = NOTHING,
    third: At = NOTHING,
    value: int = 0,
    atomic: str | None = None,
    core: str | None = None,
    shadow: bool = False,
) -> tuple[np.ndarray, Report]:
    """The image of the destination after one instruction, and what the launch reports.

    Without ``shadow`` only parameters, bounds and alignment are checked, since the images are put
    into local memories from outside.
    """
    call = _Call(op=OPS.index(op), type=TYPES.index(dtype), config=config, q=value)
    call.other_type = TYPES.index(other or dtype)
    call.p[: len(params)] = [int(p) for p in params]
    call.p[19] = ATOMICS[atomic] if atomic else 0
    result = dst.image.view(np.uint8).ravel().copy()
    images = {"src": src, "second": second, "third": third}
    buffers: list[Buffer] = []
    for name, at in {**images, "dst": At(dst.memory, result, dst.address)}.items():
        raw = at.image.view(np.uint8).ravel()
        setattr(call, name, _Image(POSITIONS[at.memory], raw.size, at.address, 0))
        buffers.append(inout(name, raw) if name == "dst" else inputs(name, raw.copy()))
    core = core or ("vector" if "UB" in (src.memory, dst.memory) else "cube")
    options = Options(shadow=shadow, isolated=False)
    report = launch(library(), f"on_{core}", [*buffers, call], blocks=1, options=options)
    return result, report


def result(op: str, dst: At, src: At, params: Sequence[int], **more: object) -> np.ndarray:
    """The image after an instruction that must be reported clean."""
    image, report = run(op, dst, src, params, **more)  # type: ignore[arg-type]
    assert report.clean, [str(f) for f in report.findings]
    return image


def finding(op: str, dst: At, src: At, params: Sequence[int], **more: object) -> str:
    """The only class of fault that an instruction has."""
    _, report = run(op, dst, src, params, **more)  # type: ignore[arg-type]
    kinds = {f.kind for f in report.findings}
    assert len(kinds) == 1, [str(f) for f in report.findings]
    return kinds.pop()
