"""Fitted vectors against the formula and the NPU's arithmetic in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.quant.methods import fitted_smoothing
from glm5_ascend.quant.methods.fitted_smoothing import fitted_search, fitted_vector
from glm5_ascend.quant.methods.grid import INT4, INT8
from glm5_ascend.quant.methods.smoothing import Consumer
from tests.quant.methods.test_smoothing import independent_error, per_channel

WIDTH, TOKENS = 64, 3000


def wandering(tokens: int, seed: int) -> Tensor:
    """Every token has two large channels, and some channels are drawn far more often."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, WIDTH, generator=generator)
    often = 1.0 / torch.arange(1, WIDTH + 1)
    chosen = torch.multinomial(often, tokens * 2, replacement=True, generator=generator)
    rows = torch.arange(tokens).repeat_interleave(2)
    x[rows, chosen] += 25.0 * torch.randn(tokens * 2, generator=generator)
    return x


@pytest.fixture(scope="module")
def sample() -> Tensor:
    return wandering(TOKENS, 1)


@pytest.fixture(scope="module")
def readers() -> list[Consumer]:
    generator = torch.Generator().manual_seed(2)
    return [Consumer(0.05 * torch.randn(48, WIDTH, generator=generator), INT8)]


def modelled(x: Tensor, reader: Consumer, vector: Tensor, kappa: float) -> float:
    """The module's formula, token by token, float64."""
    values, weight, s = (t.double().numpy() for t in (x, reader.weight, vector))
    output = ((values @ weight.T) ** 2).sum(1)
    spread = (s**2 * (weight**2).sum(0)).sum()
    total = 0.0
    for row, size in zip(values, output, strict=True):
        rounding = (np.abs(row) / s).max() ** 2 / (12 * 127**2)
        error = spread * (rounding + kappa / WIDTH * (row**2 / s**2).sum())
        total += error / (size + 0.1 * output.mean())
    return total / len(values)


@pytest.mark.parametrize("grid", ["int8", "int4"])
def test_no_small_change_is_better(sample: Tensor, grid: str) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = 0.05 * torch.randn(48, WIDTH, generator=generator)
    reader = Consumer(weight, INT4 if grid == "int4" else INT8)
    kappa = {"int4": 4e-3, "int8": 3e-5}[grid]
    x = sample[:400]
    vector = fitted_vector(x, [reader])
    assert float(vector.log().mean().abs()) < 1e-9
    found = modelled(x, reader, vector, kappa)
    sizes = (x.abs().amax(0) ** 0.5, x.square().mean(0).sqrt() ** 0.5, torch.ones(WIDTH))
    assert all(found < modelled(x, reader, other.double(), kappa) for other in sizes)
    for channel in range(0, WIDTH, 7):
        for factor in (0.95, 1.05):
            other = vector.clone()
            other[channel] *= factor
            assert modelled(x, reader, other, kappa) > 0.995 * found


def test_it_lowers_what_the_npu_computes_on_other_tokens(
    sample: Tensor, readers: list[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, ones = wandering(1000, 9), torch.ones(WIDTH)
    found = fitted_search(sample, readers)
    plain = independent_error(other, readers, ones)
    error = independent_error(other, readers, found.vector)
    print(f"error with the vector / without: {error / plain:.3f}")
    assert error < 0.8 * plain
    assert found.error < 0.8 * found.plain
    assert independent_error(other, readers, 1 / found.vector) > plain
    # Extremes over tokens are not what the engine takes: a vector does nothing there.
    assert independent_error(other, readers, found.vector, per_channel) > 0.95 * (
        independent_error(other, readers, ones, per_channel)
    )
    # A fit that divides and multiplies the wrong way round is refused by the measurement.
    original = fitted_vector
    monkeypatch.setattr(
        fitted_smoothing, "fitted_vector", lambda x, readers: 1 / original(x, readers)
    )
    assert bool((fitted_search(sample, readers).vector == 1).all())


def test_the_power_is_that_of_the_rows_kept_back(sample: Tensor, readers: list[Consumer]) -> None:
    """Few rows say less: the vector from them is applied in part or not at all."""
    few, many = fitted_search(sample[:24], readers), fitted_search(sample, readers)
    other, ones = wandering(1000, 9), torch.ones(WIDTH)
    plain = independent_error(other, readers, ones)
    errors = [independent_error(other, readers, found.vector) for found in (few, many)]
    assert errors[1] < errors[0] < 1.05 * plain


def test_edges(sample: Tensor, readers: list[Consumer]) -> None:
    one = fitted_search(sample[:1], readers).vector
    assert bool(torch.isfinite(one).all())
    dead = sample.clone()
    dead[:, 5] = 0.0
    found = fitted_search(dead, readers).vector
    assert bool(torch.isfinite(found).all())
    assert bool((found > 0).all())
    with pytest.raises(ValueError, match="quantised reader"):
        fitted_search(sample, [Consumer(readers[0].weight, None)])
    with pytest.raises(ValueError, match="tokens"):
        fitted_search(sample[:0], readers)
