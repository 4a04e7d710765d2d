"""SetAtomicAdd on every way into GM, and cores that add to one place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glm5_ascend.ops.emulator.build import Kernel, build
from glm5_ascend.ops.emulator.launch import Options, inout, launch
from tests.ops.emulator.cube.calls import ND, At, finding, result
from tests.ops.emulator.cube.models import bf16_bits, plain, random_values

SOURCE = Path(__file__).with_name("atomics.cpp")
TYPES = ["int8", "half", "bf16", "float", "int32"]


def _sum(old: np.ndarray, new: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return bf16_bits((plain(old, dtype) + plain(new, dtype)).astype(np.float32))
    if dtype == "half":
        return (old.astype(np.float32) + new.astype(np.float32)).astype(np.float16)
    return old + new


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", ["count", "blocks", "pad_out"])
@pytest.mark.parametrize("src", ["UB", "L1"])
def test_copies_add(op: str, src: str, dtype: str) -> None:
    if op == "pad_out" and src == "L1":
        return
    rng = np.random.default_rng(6)
    old, new = random_values(rng, dtype, (256,)), random_values(rng, dtype, (256,))
    size = old.itemsize
    params = {"count": [256], "blocks": [2, 2, 0, 1], "pad_out": [2, 40, 0, 24]}[op]
    got = result(op, At("GM", old), At(src, new), params, dtype=dtype, atomic=dtype).view(old.dtype)
    want = old.copy()
    if op == "count":
        want = _sum(old, new, dtype)
    else:
        taken, from_step, to_step = (64, 64, 96) if op == "blocks" else (40, 64, 64)
        for i in range(2):
            to = want[i * to_step // size :][: taken // size]
            to[:] = _sum(to, new[i * from_step // size :][: taken // size], dtype)
    assert np.array_equal(got, want)


def test_results_add() -> None:
    rng = np.random.default_rng(7)
    old = rng.standard_normal((16, 16)).astype(np.float32)
    new = rng.standard_normal((16, 16)).astype(np.float32)
    got = result(
        "fix", At("GM", old), At("L0C", new), [16, 16, 16, 16, 0, 1, 0, 0], dtype="float",
        other="float", config=ND, atomic="float",
    )  # fmt: skip
    assert np.array_equal(got.view(np.float32), (old + new).ravel())


def test_only_gm_adds() -> None:
    old, new = np.ones(256, np.float16), np.full(256, 2, np.float16)
    got = result("count", At("UB", old), At("GM", new), [256], atomic="half")
    assert np.array_equal(got.view(np.float16), new)


def test_another_type() -> None:
    old = np.ones(256, np.float16)
    assert finding("count", At("GM", old), At("UB", old), [256], atomic="float") == "DTYPE"


@pytest.mark.parametrize("atomic", [False, True])
def test_cores_at_one_place(atomic: bool) -> None:
    library = build(SOURCE, [Kernel("same_place", "same_place", "vector")])
    out = np.zeros(8, np.float32)
    report = launch(
        library,
        "same_place",
        [inout("out", out), atomic],
        blocks=4,
        options=Options(isolated=False),
    )
    assert {f.kind for f in report.findings} == (set() if atomic else {"GM-RACE"})
    if atomic:
        assert (out == 1 + 2 + 3 + 4).all()
