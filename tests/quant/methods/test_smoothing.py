"""Searches measure what the NPU computes, and return what they measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from glm5_ascend.ops import linear_w8a8_dynamic
from glm5_ascend.quant.methods.grid import INT4, INT8, Grid
from glm5_ascend.quant.methods.hessian import accumulate, factorise, symmetric
from glm5_ascend.quant.methods.scales import weighted_scale
from glm5_ascend.quant.methods.smoothing import (
    Consumer,
    Smoothing,
    awq_search,
    output_error,
    pivot_search,
    smooth_search,
    snapped,
)

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def sample() -> Tensor:
    """256 tokens of 96 channels with a few large ones, and tokens of very different size."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(256, 96, generator=generator)
    x[:, [3, 40, 41]] *= 25.0
    return x * torch.logspace(-1.0, 1.5, 256).unsqueeze(1)


@pytest.fixture(scope="module")
def consumers() -> list[Consumer]:
    """int8 and int4 readers and a float one."""
    generator = torch.Generator().manual_seed(6)
    first, second, third, router = (
        0.05 * torch.randn(rows, 96, generator=generator) for rows in (48, 64, 40, 16)
    )
    return [
        Consumer(first, INT8),
        Consumer(second, INT4),
        Consumer(third, INT8),
        Consumer(router, None),
    ]


def per_token(x: Array) -> Array:
    scale = np.abs(x).max(1, keepdims=True) / 127
    return np.clip(np.round(x / scale), -127, 127) * scale


def per_channel(x: Array) -> Array:
    """The fault of fake quantisation that takes extremes over tokens."""
    scale = np.abs(x).max(0, keepdims=True) / 127
    return np.clip(np.round(x / scale), -127, 127) * scale


def independent_error(
    inputs: Tensor,
    consumers: list[Consumer],
    vector: Tensor,
    fake: Callable[[Array], Array] = per_token,
) -> float:
    """The definition in NumPy; the grid's scale search is the only thing shared."""
    x, s = inputs.double().numpy(), vector.float().double().numpy()
    seen, errors = fake(x / s), []
    for reader in consumers:
        if reader.grid is None:
            continue
        weight = reader.weight * vector.float()
        step = weighted_scale(weight, None, reader.grid).double().numpy()
        grid: Grid = reader.grid
        stored = np.clip(np.round(weight.double().numpy() / step), grid.low, grid.high) * step
        wanted = x @ reader.weight.double().numpy().T
        size = (wanted**2).sum(1)
        errors.append((((seen @ stored.T - wanted) ** 2).sum(1) / (size + size.mean() / 10)).mean())
    return float(np.mean(errors))


SEARCHES = {"flex": smooth_search, "awq": awq_search}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("norm", [True, False])
def test_the_vector_that_is_returned_is_the_one_that_was_measured(
    name: str, norm: bool, sample: Tensor, consumers: list[Consumer]
) -> None:
    gamma = torch.ones(96) if norm else None
    found = SEARCHES[name](sample, consumers, gamma=gamma)
    kept, one = sample[1::2], torch.ones(96, dtype=torch.float64)
    assert found.error == pytest.approx(independent_error(kept, consumers, found.vector), 1e-4)
    assert found.plain == pytest.approx(independent_error(kept, consumers, one), 1e-4)
    assert found.error < found.plain
    # int4 readers hide the error of the activation, which is what a vector lowers.
    wide = SEARCHES[name](sample, consumers[:1], gamma=gamma)
    print(f"{name}: {wide.plain:.3e} -> {wide.error:.3e}")
    assert wide.error < 0.5 * wide.plain


def test_measuring_one_vector_and_applying_another_is_noticed(
    sample: Tensor, consumers: list[Consumer]
) -> None:
    # max|x|^a is searched, mean|x|^a applied: the defect of a search in use.
    exponent = 0.5
    largest = sample.abs().amax(0).double() ** exponent
    mean = sample.abs().double().mean(0) ** exponent
    searched = output_error(sample, consumers, largest)
    applied = output_error(sample, consumers, mean)
    assert abs(applied / searched - 1) > 0.02
    claimed = Smoothing(mean, searched, searched)
    assert claimed.error != pytest.approx(independent_error(sample, consumers, mean), 1e-3)


def test_a_measure_per_channel_is_another(sample: Tensor, consumers: list[Consumer]) -> None:
    vector = smooth_search(sample, consumers[:1]).vector
    true = output_error(sample, consumers[:1], vector)
    fault = independent_error(sample, consumers[:1], vector, per_channel)
    assert abs(fault / true - 1) > 0.2


def test_the_measure_is_the_operator_of_the_engine(sample: Tensor) -> None:
    weight = 0.05 * torch.randn(48, 96, generator=torch.Generator().manual_seed(6))
    vector = torch.linspace(0.5, 2.0, 96, dtype=torch.float64)
    smooth = weight * vector.float()
    scale = weighted_scale(smooth, None, INT8)
    codes = INT8.codes(smooth, scale).to(torch.int8)
    y = linear_w8a8_dynamic(sample / vector.float(), codes, scale)
    wanted = sample @ weight.T
    size = wanted.square().sum(1)
    expected = float(((y - wanted).square().sum(1) / (size + size.mean() / 10)).mean())
    measured = output_error(sample, [Consumer(weight, INT8)], vector)
    assert measured == pytest.approx(expected, rel=1e-3)


def test_ones_stay_where_nothing_helps() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(0, 2, (64, 32), generator=generator) * 2.0 - 1.0
    weight = torch.randint(0, 2, (16, 32), generator=generator) * 2.0 - 1.0
    for found in (
        smooth_search(x, [Consumer(weight, INT8)]),
        awq_search(x, [Consumer(weight, INT8)]),
    ):
        assert torch.equal(found.vector, torch.ones(32, dtype=torch.float64))
        assert found.error == found.plain


def test_pivot_search_lowers_what_gptq_leaves() -> None:
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(2000, 48, generator=generator) * torch.logspace(0, -1.3, 48)
    x = x.abs() ** 1.5 * x.sign()
    weight = 0.05 * torch.randn(64, 48, generator=generator)
    hessian = torch.zeros(48, 48)
    accumulate(hessian, x)
    factor = factorise(symmetric(hessian))
    assert factor is not None
    found: Smoothing = pivot_search(x[:512], [Consumer(weight, INT4)], factor)
    print(f"pivot: {found.plain:.3e} -> {found.error:.3e}")
    assert found.error < 0.9 * found.plain


def test_snapped_vectors_leave_a_norm_exact_in_bfloat16() -> None:
    generator = torch.Generator().manual_seed(1)
    gamma = torch.randn(500, generator=generator).bfloat16().float()
    gamma[7] = 0.0
    vector = torch.rand(500, generator=generator, dtype=torch.float64) + 0.3
    result = snapped(vector, gamma)
    stored = gamma.double() / result
    # One rounding of float64 away; the cast to bfloat16 that follows removes it.
    assert torch.allclose(stored, stored.bfloat16().double(), rtol=1e-15, atol=0.0)
    kept = gamma != 0
    assert float((result / vector - 1)[kept].abs().max()) <= 2.0**-8
    assert bool((result > 0).all())
    assert torch.equal(snapped(vector, None), vector)


def test_a_vector_that_only_helps_the_rows_it_comes_from_is_not_taken() -> None:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(256, 64, generator=generator)
    # Single tokens with a large entry each: the extreme values say nothing about other tokens.
    x[torch.arange(0, 256, 2), torch.arange(128) % 64] *= 40.0
    reader = [Consumer(0.05 * torch.randn(48, 64, generator=generator), INT8)]
    one = torch.ones(64, dtype=torch.float64)
    vector = smooth_search(x, reader).vector
    others = torch.randn(256, 64, generator=generator)
    assert output_error(others, reader, vector) <= 1.02 * output_error(others, reader, one)
    assert len(smooth_search(x[:1], reader).vector) == 64


def test_nothing_to_search_with_is_an_error(sample: Tensor, consumers: list[Consumer]) -> None:
    with pytest.raises(ValueError, match="needs tokens"):
        smooth_search(sample[:0], consumers)
    with pytest.raises(ValueError, match="quantised reader"):
        awq_search(sample, consumers[-1:])
