"""Whole products with events, barriers and unitFlag, under the checks of order."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np
import pytest

from glm5_ascend.ops.emulator.build import Kernel, Library, build
from glm5_ascend.ops.emulator.launch import Options, inout, inputs, launch
from glm5_ascend.ops.emulator.report import Report
from tests.ops.emulator.cube.models import dtype as stored
from tests.ops.emulator.cube.models import plain, random_values

CPP = {"int8": "int8_t", "half": "half", "bf16": "bfloat16_t", "float": "float"}
FORMS = [("int8", False), *((d, t) for d in ("half", "bf16", "float") for t in (False, True))]


class _Sizes(ctypes.Structure):
    _fields_ = [
        (n, ctypes.c_int32) for n in ("m", "n", "k", "tile_k", "unit_flag", "tiles", "atomic")
    ]


@functools.cache
def _library() -> Library:
    kernels = [Kernel(name, name, "cube") for name in ("unit_flags", "two_products")]
    for name, transposed in FORMS:
        result = "int32_t" if name == "int8" else "float"
        function = f"matmul<{CPP[name]}, {result}, {str(transposed).lower()}>"
        kernels.append(Kernel(f"{name}_{int(transposed)}", function, "cube"))
    return build(Path(__file__).with_name("matmul.cpp"), kernels)


def _run(
    name: str, transposed: bool, m: int, n: int, k: int, **more: int
) -> tuple[np.ndarray, np.ndarray, Report]:
    rng = np.random.default_rng(m + n + k)
    a, b = random_values(rng, name, (m, k)), random_values(rng, name, (k, n))
    sizes = {"tile_k": k, "unit_flag": 0, "tiles": 1, "atomic": 0} | more
    c = np.zeros((m, n), np.int32 if name == "int8" else np.float32)
    rows = b if transposed else np.ascontiguousarray(b.T)
    report = launch(
        _library(), f"{name}_{int(transposed)}",
        [inputs("a", a), inputs("b", rows), inout("c", c), _Sizes(m=m, n=n, k=k, **sizes)],
        blocks=1, options=Options(isolated=False),
    )  # fmt: skip
    assert a.dtype == stored(name)
    return c, plain(a, name) @ plain(b, name), report


def _close(c: np.ndarray, want: np.ndarray, k: int) -> bool:
    if c.dtype == np.int32:
        return np.array_equal(c, want)
    return bool((np.abs(c - want) <= 4 * k * 2.0**-24 * np.sqrt(k) * 8).all())


@pytest.mark.parametrize("unit_flag", [0, 1])
@pytest.mark.parametrize(("name", "transposed"), FORMS)
@pytest.mark.parametrize(
    ("m", "n", "k", "tile_k"), [(16, 16, 64, 64), (48, 64, 128, 64), (33, 32, 96, 32)]
)
def test_clean_and_right(
    name: str, transposed: bool, m: int, n: int, k: int, tile_k: int, unit_flag: int
) -> None:
    c, want, report = _run(name, transposed, m, n, k, tile_k=tile_k, unit_flag=unit_flag, tiles=2)
    assert report.clean, [str(f) for f in report.findings]
    assert _close(c, want, k)


def test_atomic_results_add_up() -> None:
    c, want, report = _run("half", True, 48, 64, 128, tiles=3, atomic=1)
    assert report.clean, [str(f) for f in report.findings]
    assert _close(c / 3, want, 128)


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize(("m", "n", "needed"), [(48, 48, True), (16, 144, True), (32, 80, False)])
def test_barrier_between_products(m: int, n: int, needed: bool, barrier: bool) -> None:
    report = launch(
        _library(), "two_products", [m, n, barrier], blocks=1, options=Options(isolated=False)
    )
    assert {f.kind for f in report.findings} == (
        {"RAW", "WAW"} if needed and not barrier else set()
    )


def _unit_flags(*flags: int) -> set[str]:
    packed = sum((1 if f < 0 else f) << 2 * i for i, f in enumerate(flags))
    packed |= sum(1 << 2 * i for i in range(len(flags), 4))
    c = np.zeros((16, 16), np.float32)
    report = launch(
        _library(), "unit_flags", [inout("c", c), packed], blocks=1, options=Options(isolated=False)
    )
    return {f.kind for f in report.findings}


def test_unit_flag_protocol() -> None:
    assert _unit_flags(3, 3, 3, 3) == set()
    assert _unit_flags(3, 2, -1, 3) == set()
    assert _unit_flags(2, -1, 3, 3) == set()
    assert _unit_flags(3) == {"EVENT-PAIR"}  # left set
    assert _unit_flags(2, 3) == {"EVENT-PAIR"}  # Fixpipe waits forever
    assert _unit_flags(3, 2, 3, 3) == {"EVENT-PAIR"}  # the first result was not released
    assert _unit_flags(3, 0, -1, 3) >= {"EVENT-PAIR"}  # one instruction without the flag
    assert _unit_flags(0, 0) == {"RAW"}  # neither flag nor event
