"""Static ranges against brute force and the engine's operator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import linear_w8a8_static
from glm5_ascend.quant.methods.grid import INT8
from glm5_ascend.quant.methods.scales import weighted_scale
from glm5_ascend.quant.methods.static_range import InputHistogram, quantised, static_range
from glm5_ascend.quant.solutions import StaticRange
from glm5_ascend.quant.static_linear import static_tensors

METHODS = ("minmax", "percentile", "mse")


def drawn(kind: str) -> Tensor:
    generator = np.random.default_rng(3)
    values = {
        "gaussian": generator.normal(size=(400, 64)),
        "outliers": generator.standard_t(3, size=(400, 64)),
        "positive": generator.exponential(size=(400, 64)),
        "tiny": 1e-6 * generator.normal(size=(400, 64)),
    }[kind]
    return torch.from_numpy(values).float()


def histogram_of(*parts: Tensor) -> InputHistogram:
    result = InputHistogram()
    for part in parts:
        result.add(part)
    return result


def squared(values: Tensor, given: StaticRange) -> float:
    x = values.double().numpy()
    codes = np.clip(np.round(x / given.scale + given.offset), -128, 127)
    return float(((x - (codes - given.offset) * given.scale) ** 2).sum())


@pytest.mark.parametrize("kind", ["gaussian", "outliers", "positive", "tiny"])
def test_mse_is_near_the_best_of_a_dense_grid_and_below_the_others(kind: str) -> None:
    values = drawn(kind)
    histogram = histogram_of(values)
    errors = {m: squared(values, static_range(histogram, m)) for m in METHODS}  # type: ignore[arg-type]
    x = values.numpy()
    best = np.inf
    for low, high in itertools.product(np.linspace(0.1, 1, 25), repeat=2):
        span = high * max(x.max(), 0) - low * min(x.min(), 0)
        scale = float(torch.tensor(span / 255).bfloat16())
        offset = int(np.clip(round(-low * min(x.min(), 0) / scale) - 128, -128, 127))
        best = min(best, squared(values, StaticRange(scale, offset)))
    print(
        f"{kind}: mse/best {errors['mse'] / best:.3f},"
        f" minmax/mse {errors['minmax'] / errors['mse']:.2f}"
    )
    assert errors["mse"] <= 1.06 * best
    assert errors["mse"] <= 1.001 * min(errors.values())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["gaussian", "positive"])
def test_scale_is_exact_in_bfloat16_and_the_operator_sees_it(method: str, kind: str) -> None:
    values = drawn(kind)
    given = static_range(histogram_of(values), method)  # type: ignore[arg-type]
    assert given.scale == float(torch.tensor(given.scale).bfloat16())
    assert -128 <= given.offset <= 127
    weight = 0.05 * torch.randn(24, 64, generator=torch.Generator().manual_seed(0))
    step = weighted_scale(weight, None, INT8)
    codes = INT8.codes(weight, step).to(torch.int8)
    stored = static_tensors(codes, step, given)
    y = linear_w8a8_static(values, codes, **stored)
    expected = quantised(values, given).double() @ (codes * step).double().T
    np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


def test_minmax_clips_nothing() -> None:
    values = drawn("outliers")
    given = static_range(histogram_of(values), "minmax")
    assert float((quantised(values, given) - values).abs().max()) <= 0.5001 * given.scale


def test_percentile_leaves_out_its_share() -> None:
    values = drawn("gaussian")
    low, high = histogram_of(values).percentile(0.99)
    for share in (float((values < low).double().mean()), float((values > high).double().mean())):
        assert share == pytest.approx(0.01, abs=0.003)


def test_order_and_pieces_do_not_matter() -> None:
    values = torch.cat((0.001 * drawn("gaussian"), drawn("outliers")))
    whole, other = histogram_of(values), histogram_of(*values.flip(0).split(37))
    for left, right in zip(whole.bins(), other.bins(), strict=True):
        assert torch.equal(left, right)
    assert (whole.low, whole.high) == (other.low, other.high)
    fewer = histogram_of(values[:-1])
    assert not torch.equal(fewer.bins()[1].sum(), whole.bins()[1].sum())


def test_zeros_and_nan() -> None:
    assert static_range(histogram_of(torch.zeros(3, 4))) == StaticRange(1.0, 0)
    assert static_range(InputHistogram()) == StaticRange(1.0, 0)
    with pytest.raises(ValueError, match="NaN or infinity"):
        histogram_of(torch.tensor([1.0, torch.inf]))
