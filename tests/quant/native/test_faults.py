"""Mistakes that the kernels could have are seen in the comparison with float64 or in the bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glm5_ascend.ops.native import library
from tests.ops.native.calls import Array, here
from tests.ops.native.mutants import mutant
from tests.quant.native.problems import HOME, PROBLEMS, Built, Problem, build, is_bfloat16

BUILT = {problem.label: build(problem) for problem in PROBLEMS}

# file, right, wrong, problem that shows it
FAULTS = {
    "wrong sign in Paley's matrix": (
        "hadamard.h",
        "total = H.minus[i][2 * m] ? total - pair : total + pair;",
        "total = H.minus[i][2 * m] ^ (i == 5 && m == 3) ? total - pair : total + pair;",
        "expert-up",
    ),
    "a level of butterflies is lost": (
        "hadamard.h",
        "for (int distance = 1; distance < W; distance *= 2)\n#pragma GCC unroll 8",
        "for (int distance = 2; distance < W; distance *= 2)\n#pragma GCC unroll 8",
        "expert-up",
    ),
    "wrong level down columns": (
        "hadamard.h",
        "if (2 * step == n) far_down<2>",
        "if (4 * step == n) far_down<2>",
        "expert-down",
    ),
    "block scale dropped": (
        "source.h",
        "if (scale != nullptr) raw *= splat(*scale);",
        "",
        "fp8-up",
    ),
    "block scale of the next row of blocks": (
        "source.h",
        "s.scales + row / s.high *",
        "s.scales + (row + 1) / s.high *",
        "fp8-up",
    ),
    "block scale of the next column of blocks": (
        "source.h",
        "stop - i, scales + block,",
        "stop - i, scales + (block ^ 1),",
        "fp8-down",
    ),
    "block scale in BF16": (
        "source.h",
        "raw *= splat(*scale);",
        "raw *= splat(to_f32(to_bf16(*scale)));",
        "fp8-up",
    ),
    "no second factors after the shift": (
        "axis.h",
        "p[i + k] = room[i + k] * axis.again[k];",
        "p[i + k] = room[i + k];",
        "q-b",
    ),
    "shift the other way": (
        "axis.h",
        "const int64_t to = (i + g.shift) % g.width;",
        "const int64_t to = (i + g.width - g.shift / 2) % g.width;",
        "q-a",
    ),
    "rope rows forgotten": (
        "by_columns.h",
        "finish_plain(work, done, rows);",
        "finish_plain(work, done, rows - 2);",
        "kv-a",
    ),
    "nibbles exchanged": (
        "work.h",
        "(uint8_t(odd[i]) << 4) | (uint8_t(rows.codes[i]) & 15)",
        "(uint8_t(rows.codes[i]) << 4) | (uint8_t(odd[i]) & 15)",
        "expert-up",
    ),
    "scale of the other row": (
        "work.h",
        "out.scale[index] = scale;",
        "out.scale[index ^ 1] = scale;",
        "expert-up",
    ),
    "factors after the rotation forgotten": (
        "work.h",
        "if (work.rows.after != nullptr)",
        "if (false)",
        "smoothed",
    ),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_fault_is_seen(name: str, tmp_path: Path) -> None:
    file, right, wrong, label = FAULTS[name]
    kernels = mutant("native", file, right, wrong, "portable", tmp_path, home=HOME)
    assert not is_right(BUILT[label], here(kernels, BUILT[label].call()))


def test_none_of_these_problems_fails_without_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_ASCEND_CPU_ISA", "portable")
    for label in {fault[3] for fault in FAULTS.values()}:
        assert is_right(BUILT[label], here(library("native", HOME), BUILT[label].call())), label


def test_a_scale_in_bfloat16_is_seen(tmp_path: Path) -> None:
    right = "scale = BITS == 4 ? float(fitted_scale("
    wrong = "scale = BITS == 4 ? rounded_to_bf16(fitted_scale("
    helper = "inline float rounded_to_bf16(double x) { return to_f32(to_bf16(float(x))); }\n\n"
    place = "// Scale and codes of x[n]"
    built = build(Problem("many", 64, 2048, 4))
    sources = (HOME / "native" / "csrc" / "search.h").read_text()
    assert sources.count(right) == sources.count(place) == 1
    whole = sources.replace(right, wrong).replace(place, helper + place)
    kernels = mutant("native", "search.h", sources, whole, "portable", tmp_path, home=HOME)
    assert is_bfloat16(torch.from_numpy(here(kernels, built.call())[1]))


def test_fused_arithmetic_is_seen_in_the_bits(tmp_path: Path) -> None:
    """Without the pragma, compilers fuse a product with the sum that rounds it to an integer."""
    built = build(Problem("many", 512, 2048, 4))
    fused = mutant(
        *("native", "exact.h", '"fp-contract=off"', '"fp-contract=fast"', "avx2", tmp_path),
        home=HOME,
        optimise="-O2",
    )
    right, wrong = here(library("native", HOME), built.call()), here(fused, built.call())
    assert any(a.tobytes() != b.tobytes() for a, b in zip(right, wrong, strict=True))


def is_right(built: Built, found: list[Array]) -> bool:
    """Codes within half a step of float64's weight, and a range that is used."""
    scale = torch.from_numpy(found[1]).double()
    if not bool((scale > 0).all()):
        return False
    low, high = (-8, 7) if built.problem.bits == 4 else (-128, 127)
    exact = built.exact.clamp(low * scale, high * scale)
    near = (built.dequantised(found) - exact).abs() <= 0.5 * scale + 2 * built.bound
    # What is clipped is little: a scale of another row could hide errors by clipping.
    share = float((built.exact - exact).square().sum() / built.exact.square().sum())
    return bool(near.all()) and share < 0.02
