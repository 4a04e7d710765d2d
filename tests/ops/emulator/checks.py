"""The kernels of ``kernels/``: which faults they have, and running them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glm5_ascend.ops.emulator.build import Kernel, Library, build
from glm5_ascend.ops.emulator.launch import Options, inputs, launch, output, workspace
from glm5_ascend.ops.emulator.report import Report

FOLDER = Path(__file__).parent / "kernels"
# File -> kernel -> its cores.
KERNELS = {
    "order": {
        "order": "vector",
        "scalar_order": "vector",
        "all_pipes": "vector",
        "events": "vector",
        "event_ids": "vector",
    },
    "memory": {
        "bounds": "vector",
        "placed": "vector",
        "content": "vector",
        "refused": "vector",
        "neighbours": "vector",
    },
    "queues": {"queues": "vector", "queue_order": "vector", "queue_ids": "vector"},
    "cross": {
        "cross": "mix12",
        "all_vectors": "mix12",
        "all_cores": "mix12",
        "unmixed": "vector",
        "vectors_alone": "mix01",
        "on_cube": "cube",
    },
    "global": {"scalar_cache": "mix01", "scalar_and_copy": "mix01", "atomics": "mix01"},
    "faults": {"faults": "vector"},
    "undefined": {"undefined": "vector"},
    "pipeline": {"pipeline": "mix12", "tiles": "vector", "exchange": "mix12"},
}
FILES = {kernel: file for file, kernels in KERNELS.items() for kernel in kernels}


class Fault(NamedTuple):
    """``kind`` has to be found at ``line`` of the kernel's file."""

    kernel: str
    number: int
    kind: str
    line: int


def faults() -> list[Fault]:
    """What the comments in the kernels announce."""
    found = []
    for file in KERNELS:
        for line, text in enumerate((FOLDER / f"{file}.cpp").read_text().splitlines(), 1):
            for kernel, number, kind in re.findall(r"finds (\w+) (\d+) ([A-Z-]+)", text):
                found.append(Fault(kernel, int(number), kind, line))
    return found


@cache
def library(*, sanitize: bool = False) -> Library:
    """All kernels, or those that need the sanitiser."""
    kernels = [
        Kernel(name, name, core)
        for file, group in KERNELS.items()
        for name, core in group.items()
        if (file == "undefined") == sanitize
    ]
    source = FOLDER / ("undefined.cpp" if sanitize else "all.cpp")
    return build(source, kernels, sanitize=sanitize)


def run(kernel: str, fault: int, options: Options, *, blocks: int = 2) -> tuple[Report, np.ndarray]:
    """The report, and the output of 4096 floats for the input 0, 1, 2 and so on."""
    built = library(sanitize=FILES[kernel] == "undefined")
    x, y = np.arange(4096, dtype=np.float32), np.zeros(4096, np.float32)
    arguments = [inputs("in", x), output("out", y), workspace("work", y.nbytes), fault]
    report = launch(built, kernel, arguments, blocks=blocks, options=options)
    return report, y
