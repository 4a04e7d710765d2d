"""Runs the kernels of ``kernels.cpp`` for their time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from glm5_ascend.ops.emulator import abi
from glm5_ascend.ops.emulator.abi import Rates
from glm5_ascend.ops.emulator.build import Kernel, Library, build
from glm5_ascend.ops.emulator.launch import Buffer, Options, Value, launch
from glm5_ascend.ops.emulator.report import Model, Occupation, Report

KERNELS = {
    "reads": "vector",
    "writes": "vector",
    "stages": "vector",
    "queued": "vector",
    "products": "cube",
    "phases": "mix01",
    "scalar_wait": "vector",
}


@cache
def library() -> Library:
    """All kernels."""
    source = Path(__file__).parent / "kernels.cpp"
    return build(source, [Kernel(name, name, core) for name, core in KERNELS.items()])


def simple(**changes: float) -> Rates:
    """64 elements and 100 bytes of GM per cycle; no starts, no limits."""
    table = Rates(**changes)
    for i in range(len(abi.VECTOR_OPS)):
        table.elements[i] = 64
    for i in range(len(abi.CUBE_TYPES)):
        table.cube_k[i] = 16
    for i in range(len(abi.PATHS)):
        table.move_bytes[i] = 100
    return table


def run(
    kernel: str,
    arguments: Sequence[Buffer | Value],
    *rates: Rates,
    blocks: int = 1,
    shadow: bool = False,
    bins: int = 0,
) -> Report:
    """The report of a launch that must be clean of everything but missing data."""
    options = Options(isolated=False, shadow=shadow, rates=rates, bins=bins, block_limit=48)
    report = launch(library(), kernel, arguments, blocks=blocks, options=options)
    assert report.findings == ()
    return report


def model(
    kernel: str, arguments: Sequence[Buffer | Value], rates: Rates, *, blocks: int = 1
) -> Model:
    """The only model of a launch."""
    return run(kernel, arguments, rates, blocks=blocks).models[0]


def lane(model: Model, core: str, pipe: str) -> Occupation:
    """One pipe of one core."""
    return next(each for each in model.lanes if each.core == core and each.pipe == pipe)
