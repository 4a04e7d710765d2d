"""The exported functions, run by ONNX Runtime, on the cases of the conformance suite.

Not demanded of them: that a row's bits ignore the batch, which ONNX Runtime does not promise.
"""

from __future__ import annotations

import pytest
import torch

from glm5_ascend import ops
from glm5_ascend.ops.norm_rope.onnx_graph import inverse_frequencies
from glm5_ascend.ops.verify import suite
from glm5_ascend.ops.verify.case import Case
from glm5_ascend.ops.verify.compare import require
from tests.ops.onnx.backend import call, onnx_backend
from tests.support.compare import assert_identical

OPERATORS = {
    "attention_layers",
    "lightning_indexer",
    "mlapo",
    "moe",
    "norm_rope",
    "paged_cache",
    "quant_linear",
    "sparse_flash_attention",
}
# Without ONNX form: order by score, packed cache rows, experts of other ranks, int8 in or out, and
# two of the four pairs of layouts.
WITHOUT = ("by_score", "kv_rows", "packed", "absent", "codes", "int8_query")
OTHER_LAYOUTS = ("TND-TND", "BSND-PA_BSND")


def cases() -> list[Case]:
    """Every case that has an ONNX form."""
    return [
        case
        for case in suite.cases()
        if case.operator in OPERATORS
        and not any(word in str(case) for word in (*WITHOUT, *OTHER_LAYOUTS))
    ]


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.operator}-{case}")
def test_case(case: Case) -> None:
    problem = case.problem()
    require(problem.judge(problem.run(onnx_backend)))


def test_every_operator_has_cases() -> None:
    assert {case.operator for case in cases()} == OPERATORS


@pytest.mark.parametrize("terms", [5, 1024, 6144])
def test_integer_products_are_exact_at_the_extremes(terms: int) -> None:
    """Sums of pairs of the largest products leave 16 bits, and 6144 of them 24 bits."""
    codes = torch.full((3, terms), -128, dtype=torch.int8)
    codes[1], codes[2, ::2] = 127, 127
    weight = torch.full((4, terms), -128, dtype=torch.int8)
    weight[1], weight[2, ::2] = 127, 127
    (found,) = call("IntProduct", (codes, weight), ((torch.int32, 2),))
    assert_identical(found, (codes.long() @ weight.long().T).int())


def test_static_codes_are_rounded_after_the_offset() -> None:
    """2.5 + 1 rounds to 4, but 2.5 rounds to 2: where the tie goes depends on the order."""
    x, weight = torch.tensor([[2.5]]), torch.ones(1, 1, dtype=torch.int8)
    one = torch.ones(1)
    inputs = (x, weight, one, one, torch.zeros(1, dtype=torch.int32), one)
    assert call("LinearW8A8Static", inputs, ((torch.float32, 2),))[0].item() == 4


def test_angles_of_far_positions() -> None:
    positions = torch.tensor([0, 1, 4095, 202_751, 1_048_575])
    inverse = torch.from_numpy(inverse_frequencies(64, 8e6))
    found = call("RotaryTable", (positions, inverse), [(torch.float32, 2)] * 2)
    for actual, low in zip(found, ops.rotary_table(positions, 64, 8e6), strict=True):
        # One unit in the last place of values up to one.
        torch.testing.assert_close(actual, low, rtol=0, atol=1.2e-7)
