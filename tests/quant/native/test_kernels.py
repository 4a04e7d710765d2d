"""The fused kernels against float64, and the same bits from every instruction set."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch

from glm5_ascend.ops.native import isa, library
from glm5_ascend.quant.packing import offset_bias, unpack_rows
from tests.ops.native.calls import Array, emulated, here
from tests.ops.native.cross import driver, emulator
from tests.quant.native.problems import ENTRY, HOME, PROBLEMS, Problem, build, depth

BUILT = {problem.label: build(problem) for problem in PROBLEMS}
LABELS = list(BUILT)


def on(name: str, monkeypatch: pytest.MonkeyPatch, threads: int = 1) -> dict[str, list[Array]]:
    monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", name)
    monkeypatch.setenv("GLM5_ASCEND_THREADS", str(threads))
    kernels = library("native", HOME)
    return {label: here(kernels, built.call()) for label, built in BUILT.items()}


@pytest.fixture(scope="module")
def portable() -> dict[str, list[Array]]:
    with pytest.MonkeyPatch.context() as patch:
        return on("portable", patch)


@pytest.mark.parametrize("label", LABELS)
def test_values_are_those_of_float64(label: str, portable: dict[str, list[Array]]) -> None:
    built = BUILT[label]
    found = built.dequantised(portable[label])
    allowed = built.bound + (2.0**-8 if built.problem.bits == 16 else 0.0) * built.exact.abs()
    if built.problem.bits <= 8:
        scale = torch.from_numpy(portable[label][1]).double()
        low, high = (-8, 7) if built.problem.bits == 4 else (-128, 127)
        exact = built.exact.clamp(low * scale, high * scale)
        # Half a step, a little more where float32 decides a tie otherwise.
        assert bool(((found - exact).abs() <= 0.5 * scale + 2 * allowed).all())
        return
    assert bool(((found - built.exact).abs() <= allowed).all())
    # Rotations keep lengths, and roundings are independent: of their sum the root of their number.
    error = (found - built.exact).norm() / built.exact.norm()
    stored = 2.0**-24 if built.problem.bits == 32 else 2.0**-9
    assert error <= sqrt(depth(built.problem)) * 2.0**-24 + stored


@pytest.mark.parametrize("label", [p.label for p in PROBLEMS if p.bits <= 8])
def test_codes_scales_and_bias_belong_together(
    label: str, portable: dict[str, list[Array]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes are w / scale to nearest, of the very float32 weight that the kernel made."""
    problem = BUILT[label].problem
    monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", "portable")
    same = Problem(
        problem.label,
        problem.rows,
        problem.columns,
        32,
        problem.dtype,
        problem.on_columns,
        problem.on_rows,
        problem.gamma,
        problem.after,
    )
    weight = here(library("native", HOME), build(same).call())[0]
    stored, scale = torch.from_numpy(portable[label][0]), portable[label][1]
    low, high = (-8, 7) if problem.bits == 4 else (-128, 127)
    codes = np.clip(np.round(weight / scale), low, high)
    found = unpack_rows(stored) if problem.bits == 4 else stored
    np.testing.assert_array_equal(found.numpy(), codes)
    if problem.bits == 4:
        bias = offset_bias(found, torch.from_numpy(scale), is_down=problem.slices == 16)
        np.testing.assert_array_equal(portable[label][2], bias.numpy())
    else:
        bf16 = torch.from_numpy(scale).bfloat16().float()
        np.testing.assert_array_equal(scale, bf16.numpy())


@pytest.mark.parametrize("name", [s.name for s in isa.INSTRUCTION_SETS if not isa.missing(s)])
def test_every_instruction_set_gives_the_same_bits(
    name: str, portable: dict[str, list[Array]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for threads in (1, 3):
        require_same(on(name, monkeypatch, threads), portable)


@pytest.mark.parametrize("name", ["neon", "portable"])
def test_arm_gives_the_same_bits(
    name: str, portable: dict[str, list[Array]], tmp_path: Path
) -> None:
    command = [emulator(), str(driver("native", [ENTRY], name, tmp_path, HOME))]
    calls = [built.call() for built in BUILT.values()]
    found = emulated(command, [ENTRY], calls, tmp_path, threads=2)
    require_same(dict(zip(BUILT, found, strict=True)), portable)


def require_same(found: dict[str, list[Array]], wanted: dict[str, list[Array]]) -> None:
    for label, arrays in wanted.items():
        for ours, theirs in zip(found[label], arrays, strict=True):
            assert ours.tobytes() == theirs.tobytes(), label
