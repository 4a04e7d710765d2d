"""The tolerance policy passes a correct low-precision kernel and catches each planted fault."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.support.compare import (
    COSINE_LIMIT,
    assert_close,
    assert_identical,
    assert_same_selection,
    difference,
)
from tests.support.teacher_forced import step_errors, teacher_forced_error
from tests.support.tiled_attention import FAULTS, VALUE, WIDTH, Arrays, tiled


def inputs(seed: int, keys: int, std: float) -> Arrays:
    """Queries [16, 576] and latent rows [keys, 576] in BF16; the first 512 columns are values."""
    gen = torch.Generator().manual_seed(seed)
    q = (std * torch.randn(16, WIDTH, generator=gen)).bfloat16()
    rows = (std * torch.randn(keys, WIDTH, generator=gen)).bfloat16()
    return q, rows


def attention(data: Arrays, dtype: torch.dtype) -> torch.Tensor:
    """The formula: softmax(q·k/16)·v, evaluated in ``dtype``."""
    q, rows = (x.to(dtype) for x in data)
    return torch.softmax(q @ rows.T / 16, dim=-1) @ rows[:, :VALUE]


def check(data: Arrays, fault: str) -> None:
    oracle = attention(data, torch.float64)
    low = attention(data, torch.float32).bfloat16()
    assert_close(tiled(data, fault), oracle, low)


@pytest.mark.parametrize("std", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("keys", [62, 213, 1521])
def test_correct_kernel_passes(keys: int, std: float) -> None:
    for seed in range(3):
        check(inputs(seed, keys, std), "")


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(fault: str) -> None:
    keys = 1521 if fault == "bf16-accumulator" else 213
    for seed in range(6):
        data = inputs(seed, keys, 1.0)
        with pytest.raises(AssertionError, match=r"worst at|cosine|NaN|inf"):
            check(data, fault)


def test_flat_softmax_hides_a_wrong_scale() -> None:
    """Why inputs need peaked attention: with std 0.1 no policy sees a 2 % scale fault."""
    check(inputs(0, 213, 0.1), "scale")


def test_cosine_limit_is_above_the_rounding_floor() -> None:
    gen = torch.Generator().manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16):
        floors = []
        for std in (0.1, 1.0, 10.0):
            x = std * torch.randn(100_000, generator=gen, dtype=torch.float64)
            floors.append(difference(x.to(dtype), x))
        assert COSINE_LIMIT[dtype] / 10 < max(floors) < COSINE_LIMIT[dtype] / 2


def test_message_names_worst_element_and_share() -> None:
    oracle = torch.arange(6, dtype=torch.float64).view(2, 3)
    actual = oracle.float()
    actual[1, 2] = 7.0
    with pytest.raises(
        AssertionError, match=r"logits: worst at \(1, 2\): 7\.0, wanted 5\.0.*16\.67%"
    ):
        assert_close(actual, oracle, oracle.float(), name="logits")


def test_equal_special_values_pass() -> None:
    oracle = torch.tensor([[1.0, -math.inf, math.nan, math.inf]], dtype=torch.float64)
    assert_close(oracle.float(), oracle, oracle.float())
    with pytest.raises(AssertionError, match="float64"):
        assert_close(oracle, oracle, oracle.float())


SCORES = torch.tensor(
    [[5.0, 4.0, 3.0, 3.0 - 1e-9, 1.0], [2.0, 1.0, *[-math.inf] * 3]], dtype=torch.float64
)


@pytest.mark.parametrize("third", [2, 3])
def test_near_tie_may_go_either_way(third: int) -> None:
    assert_same_selection(torch.tensor([[0, 1, third], [0, 1, -1]]), SCORES, 1e-6)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([[0, 1, 4], [0, 1, -1]], id="low-score-chosen"),
        pytest.param([[1, 2, 3], [0, 1, -1]], id="best-left-out"),
        pytest.param([[0, 1, 1], [0, 1, -1]], id="duplicate"),
        pytest.param([[0, 2, 1], [0, 1, -1]], id="not-ascending"),
        pytest.param([[0, 1, -1], [0, 1, -1]], id="too-few"),
        pytest.param([[0, 1, 2], [0, 1, 2]], id="invisible-chosen"),
        pytest.param([[0, 1, 2], [0, -1, 1]], id="padding-inside"),
        pytest.param([[0, 1, 5], [0, 1, -1]], id="out-of-range"),
    ],
)
def test_wrong_selection_is_caught(rows: list[list[int]]) -> None:
    with pytest.raises(AssertionError, match="selection: row"):
        assert_same_selection(torch.tensor(rows), SCORES, 1e-6)


def test_identical_compares_bits() -> None:
    x = torch.tensor([0.0, 1.0])
    assert_identical(x, x.clone())
    for other in (torch.tensor([-0.0, 1.0]), x.double(), x[:1]):
        with pytest.raises(AssertionError):
            assert_identical(other, x)


@pytest.fixture
def steps() -> Arrays:
    logits = 3 * torch.randn(5, 40, generator=torch.Generator().manual_seed(2)) + 100
    return logits.log_softmax(dim=-1), logits


def shift_one(x: torch.Tensor) -> torch.Tensor:
    x[3, 8] += 0.03
    return x


@pytest.mark.parametrize(
    ("change", "low", "high"),
    [
        pytest.param(lambda x: x, 0.0, 1e-5, id="equal"),
        pytest.param(shift_one, 0.009, 0.011, id="one-logit-off-by-a-hundredth"),
        pytest.param(lambda x: x.roll(1, dims=0), 1.0, 20.0, id="rows-shifted"),
        pytest.param(lambda x: 1.1 * x, 0.1, 1.0, id="temperature"),
    ],
)
def test_teacher_forced_error(
    steps: Arrays, change: Callable[[torch.Tensor], torch.Tensor], low: float, high: float
) -> None:
    logprobs, logits = steps
    assert low <= teacher_forced_error(change(logprobs.clone()), logits) <= high


def test_teacher_forced_error_with_the_best_tokens_only(steps: Arrays) -> None:
    logprobs, logits = steps
    best = logprobs.topk(8, dim=-1).indices
    partial = torch.full_like(logprobs, math.nan).scatter(1, best, logprobs.gather(1, best))
    assert teacher_forced_error(partial, logits) < 1e-5
    partial[2, best[2, 0]] += 0.5
    assert step_errors(partial, logits).argmax() == 2
    with pytest.raises(ValueError, match="fewer than two"):
        teacher_forced_error(torch.full_like(logprobs, math.nan), logits)
