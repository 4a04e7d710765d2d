"""Norms, int8 linears and experts in C++: every instruction set, planted faults, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from glm5_ascend import ops
from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.verify.experts import Experts
from tests.ops import test_moe, test_norm_rope, test_quant_linear
from tests.ops.small_kernels import forget, planted, results, rounded_results
from tests.support.compare import assert_identical


def test_exact_arithmetic_equals_the_reference_bit_by_bit(instructions: str) -> None:
    wanted = results("reference")
    for name, result in results("cpu").items():
        assert_identical(result, wanted[name], name=f"{instructions}: {name}")


_first: dict[str, torch.Tensor] = {}


def test_every_instruction_set_gives_the_same_bits(instructions: str) -> None:
    made = rounded_results("cpu")
    _first.update({name: result for name, result in made.items() if name not in _first})
    for name, result in made.items():
        assert_identical(result, _first[name], name=f"{instructions}: {name}")
    for name, result in rounded_results("reference").items():
        torch.testing.assert_close(made[name], result, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float_experts_ignore_the_batch(instructions: str, dtype: torch.dtype) -> None:
    case = Experts(37, dtype=dtype)
    weights = case.weights, case.ids
    whole = ops.moe_experts(case.x, *weights, case.w13, case.w2, backend="cpu")
    torch.testing.assert_close(
        whole.double(), case.oracle("float64"), rtol=0, atol=2e-6 if dtype.itemsize == 4 else 2e-2
    )
    for start, end in ((0, 1), (3, 7), (5, 37)):
        part = slice(start, end)
        rows = [t[part] for t in (case.x, *weights)]
        alone = ops.moe_experts(*rows, case.w13, case.w2, backend="cpu")
        assert_identical(alone, whole[part].contiguous())


def test_threads_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(40, 1536)
    weight = torch.randint(-128, 128, (512, 1536), dtype=torch.int8)
    outs = []
    for threads in ("1", "3"):
        monkeypatch.setenv("GLM5_ASCEND_THREADS", threads)
        forget()
        norm = ops.rms_norm(x, torch.ones(1536), 1e-5, backend="cpu")
        linear = ops.linear_w8a8_dynamic(norm, weight, torch.ones(512, 1), backend="cpu")
        experts = ops.moe_experts(**Experts(300).quantised("w4a8"), backend="cpu")
        outs.append((norm, linear, experts))
    forget()
    for one, three in zip(*outs, strict=True):
        assert_identical(three, one)


def check_quant() -> None:
    test_quant_linear.test_dynamic_quant_rounds_half_to_even_and_scales_by_127(torch.float32)


def check_dynamic() -> None:
    test_quant_linear.test_dynamic_linear(torch.float32, True)


def check_odd_terms() -> None:
    x, weight, scale = (
        torch.randn(2, 47),
        torch.full((3, 47), 5, dtype=torch.int8),
        torch.ones(3, 1),
    )
    wanted = ops.linear_w8a8_dynamic(x, weight, scale, backend="reference")
    assert_identical(ops.linear_w8a8_dynamic(x, weight, scale, backend="cpu"), wanted)


def check_static() -> None:
    test_quant_linear.test_static_linear(torch.float32, torch.int8)


def check_w4a8() -> None:
    case = Experts(62)
    case.check(ops.moe_experts(**case.quantised("w4a8")), "w4a8")


def check_float() -> None:
    test_moe.test_float_experts_equal_numpy(62, torch.float32)


def check_ties() -> None:
    test_moe.test_equal_scores_take_the_lowest_experts()


def check_choice() -> None:
    test_moe.test_bias_steers_the_choice_but_not_the_weight()


def check_rms() -> None:
    test_norm_rope.test_rms_norm_rounds_before_the_weight()


def check_rms_in_single() -> None:
    test_norm_rope.test_rms_norm(torch.float32)


def check_layer_norm() -> None:
    test_norm_rope.test_layer_norm(torch.float32)


def check_rotary() -> None:
    test_norm_rope.test_rotation_of_neighbouring_pairs(torch.float32)


LINEAR, MOE, NORM = "quant_linear", "moe", "norm_rope"
FAULTS: dict[str, tuple[str, str, str, str, Callable[[], None]]] = {
    "scale of 128": (LINEAR, "g5_quant.h", "/ 127.0f", "/ 128.0f", check_quant),
    "codes truncated": (
        LINEAR,
        "g5_quant.h",
        "return uint8_t(bit_cast<uint32_t>(x + 12582912.0f));",
        "return uint8_t(int32_t(x));",
        check_quant,
    ),
    "bias forgotten": (LINEAR, "scaling.h", " + bias[column + c]", "", check_dynamic),
    "scale of the wrong row": (LINEAR, "scaling.h", "x_scale[row]", "x_scale[0]", check_dynamic),
    "no saturation": (LINEAR, "g5_quant.h", "clamped(shifted, -128, 127)", "shifted", check_static),
    "quant_bias forgotten": (
        LINEAR,
        "scaling.h",
        " + uint32_t(quant_bias[column + c])",
        "",
        check_static,
    ),
    "end of the terms dropped": (
        LINEAR,
        "g5_int8_tile.h",
        "if (k < t.terms) {",
        "if (false) {",
        check_odd_terms,
    ),
    "offset of the NPU ignored": (
        MOE,
        "g5_int8_dot.h",
        "NPU_OFFSET = 8",
        "NPU_OFFSET = 0",
        check_w4a8,
    ),
    "nibbles unsigned": (
        MOE,
        "g5_int8_dot.h",
        "((raw.code[i] & 0xf) ^ 8) - 8",
        "(raw.code[i] & 0xf)",
        check_w4a8,
    ),
    "up rows before gate rows": (
        MOE,
        "experts.cpp",
        "gate[k] * sigmoid(gate[k]) * lift[k]",
        "lift[k] * sigmoid(lift[k]) * gate[k]",
        check_float,
    ),
    "first column of scale_bias": (
        MOE,
        "products.h",
        "i < layer.bias_columns",
        "i < 1",
        check_w4a8,
    ),
    "slots take each other's row": (
        MOE,
        "experts.cpp",
        "result[place[j] * hidden + k]",
        "result[place[0] * hidden + k]",
        check_float,
    ),
    "equal scores to the highest expert": (
        MOE,
        "gating.cpp",
        "int64_t chosen = 0;\n    while (key[chosen] != best) chosen++;",
        "int64_t chosen = experts - 1;\n    while (key[chosen] != best) chosen--;",
        check_ties,
    ),
    "bias in the weights": (
        MOE,
        "gating.cpp",
        "weights[j] = score[chosen];",
        "weights[j] = score[chosen] + Wide(wide(bias[chosen]));",
        check_choice,
    ),
    "eps outside the root": (
        NORM,
        "norm_rope.cpp",
        "const Wide factor = Wide(1) / std::sqrt(squares / Wide(width) + Wide(eps));\n  // R",
        "const Wide factor = Wide(1) / (std::sqrt(squares / Wide(width)) + Wide(eps));\n  // R",
        check_rms_in_single,
    ),
    "rounded once": (
        NORM,
        "norm_rope.cpp",
        "rounded<T>(wide(x[i]) * factor)",
        "(wide(x[i]) * factor)",
        check_rms,
    ),
    "mean not subtracted": (
        NORM,
        "norm_rope.cpp",
        "narrow((wide(x[i]) - mean) * factor",
        "narrow(wide(x[i]) * factor",
        check_layer_norm,
    ),
    "rotated backwards": (
        NORM,
        "norm_rope.cpp",
        "even * c - odd * s",
        "even * c + odd * s",
        check_rotary,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "cpu")
    operator, file, old, new, check = FAULTS[fault]
    check()
    with planted(tmp_path, operator, file, old, new), pytest.raises(AssertionError):
        check()


def test_refusals() -> None:
    x, ones = torch.randn(3, 8), torch.ones(8)
    with pytest.raises(ArgumentError, match=r"not torch\.int32"):
        ops.rms_norm(x.int(), ones, 1e-5, backend="cpu")
    with pytest.raises(ArgumentError, match="CPU tensors, not one on meta"):
        ops.rms_norm(x.to("meta"), ones, 1e-5, backend="cpu")
    with pytest.raises(ArgumentError, match="quant_bias must be int32"):
        ops.linear_w8a8_static(x, ones.to(torch.int8)[None], ones[:1], ones[:1], ones[:1], ones[:1])


def test_no_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def without(operator: str) -> None:
        raise BackendUnavailable("no C++ compiler", "install g++")

    monkeypatch.setattr("glm5_ascend.ops.entry_points.library", without)
    forget()
    with pytest.raises(BackendUnavailable, match="no C"):
        ops.rms_norm(torch.randn(3, 8), torch.ones(8), 1e-5, backend="cpu")
    forget()
