"""GPTQ against the textbook form: inverse of the Hessian, one column after the other, float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from glm5_ascend.quant.methods.descent import descend
from glm5_ascend.quant.methods.gptq import Rounded, gptq
from glm5_ascend.quant.methods.grid import INT4, INT8, Grid, grid_of
from glm5_ascend.quant.methods.hessian import (
    Factor,
    accumulate,
    factorise,
    symmetric,
)
from glm5_ascend.quant.scheme import Scheme

Array = NDArray[np.float64]
DAMP = 0.01
GRIDS = {"int4": INT4, "int8": INT8}


def inputs(tokens: int, width: int, seed: int = 0) -> Tensor:
    """Correlated channels of very different size, as a trained model has them."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator)
    spread = torch.logspace(0.0, -1.5, width)
    return torch.randn(tokens, width, generator=generator) * spread @ mix


def weights(rows: int, width: int, seed: int = 1) -> Tensor:
    return 0.02 * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def hessian_of(x: Tensor) -> Tensor:
    result = torch.zeros(x.shape[1], x.shape[1])
    accumulate(result, x)
    return symmetric(result)


def textbook(weight: Tensor, hessian: Tensor, scale: Tensor, grid: Grid, order: str) -> Array:
    """Dequantised weights by Frantar et al.'s algorithm 1 with blocks of one column."""
    h, w = hessian.double().numpy().copy(), weight.double().numpy().copy()
    h[np.diag_indices_from(h)] += DAMP * np.diag(h).mean()
    chosen = np.arange(len(h))
    if order == "activation":
        chosen = np.argsort(-np.diag(hessian.numpy()), kind="stable")
    h, w = h[np.ix_(chosen, chosen)], w[:, chosen]
    inverse = np.linalg.cholesky(np.linalg.inv(h)).T
    step = scale.double().numpy()[:, 0]
    stored = np.empty_like(w)
    for j in range(w.shape[1]):
        stored[:, j] = step * np.clip(np.round(w[:, j] / step), grid.low, grid.high)
        error = (w[:, j] - stored[:, j]) / inverse[j, j]
        w[:, j:] -= np.outer(error, inverse[j, j:])
    result = np.empty_like(stored)
    result[:, chosen] = stored
    return result


def quadratic(weight: Tensor, stored: Array, hessian: Tensor, damping: float) -> Array:
    error = weight.double().numpy() - stored
    h = hessian.double().numpy() + damping * np.eye(len(hessian))
    result: Array = np.einsum("ij,jk,ik->i", error, h, error)
    return result


def stored_of(found: Rounded) -> Array:
    result: Array = (found.codes.double() * found.scale.double()).numpy()
    return result


def factor_of(hessian: Tensor, order: str = "activation") -> Factor:
    factor = factorise(hessian, damp=DAMP, order=order)  # type: ignore[arg-type]
    assert factor is not None
    return factor


@pytest.mark.parametrize("bits", ["int4", "int8"])
@pytest.mark.parametrize("order", ["natural", "activation"])
@pytest.mark.parametrize("width", [24, 290])
def test_equals_the_textbook(bits: str, order: str, width: int) -> None:
    x, weight, grid = inputs(3 * width, width), weights(40, width), GRIDS[bits]
    hessian = hessian_of(x)
    factor = factor_of(hessian, order)
    found = gptq(weight, factor, grid)
    expected = textbook(weight, hessian, found.scale, grid, order)
    # A tie that float32 breaks otherwise changes the rest of its row; few rows have one.
    other_rows = int((~np.isclose(stored_of(found), expected, rtol=1e-6)).any(1).sum())
    assert other_rows <= 2, other_rows
    ours = quadratic(weight, stored_of(found), hessian, factor.damping)
    theirs = quadratic(weight, expected, hessian, factor.damping)
    assert abs(ours.sum() / theirs.sum() - 1) < 0.01
    np.testing.assert_allclose(found.loss.numpy(), ours, rtol=2e-3)


def test_a_hessian_in_another_order_than_the_columns_is_noticed() -> None:
    x, weight = inputs(600, 96), weights(64, 96)
    hessian = hessian_of(x)
    good = factor_of(hessian)
    wrong = Factor(good.feedback, good.pivots, torch.arange(96), good.damping)
    right = quadratic(weight, stored_of(gptq(weight, good, INT4)), hessian, good.damping).sum()
    fault = quadratic(weight, stored_of(gptq(weight, wrong, INT4)), hessian, good.damping).sum()
    assert fault > 1.5 * right


def test_it_beats_rounding_to_nearest() -> None:
    x, weight = inputs(600, 96), weights(64, 96)
    hessian = hessian_of(x)
    factor = factor_of(hessian)
    nearest = quadratic(weight, stored_of(gptq(weight, None, INT4)), hessian, factor.damping)
    found = quadratic(weight, stored_of(gptq(weight, factor, INT4)), hessian, factor.damping)
    print(f"loss of GPTQ / nearest: {found.sum() / nearest.sum():.3f}")
    assert found.sum() < 0.5 * nearest.sum()


def test_the_scales_of_descent_are_the_least_squares_ones_of_its_codes() -> None:
    x, weight = inputs(400, 64), weights(32, 64)
    hessian = hessian_of(x)
    factor = factor_of(hessian)
    found = descend(weight, gptq(weight, factor, INT4), factor, INT4)
    h = hessian.double() + factor.damping * torch.eye(64)
    q = found.codes.double()
    best = ((q @ h) * weight).sum(1) / ((q @ h) * q).sum(1)
    np.testing.assert_allclose(found.scale[:, 0].numpy(), best.numpy(), rtol=1e-4)


def test_int8_scales_stay_exact_in_bfloat16() -> None:
    factor = factor_of(hessian_of(inputs(400, 64)))
    start = gptq(weights(32, 64), factor, INT8)
    found = descend(weights(32, 64), start, factor, INT8)
    for result in (start, found):
        assert torch.equal(result.scale, result.scale.bfloat16().float())


def test_rows_are_independent_so_gate_and_up_share_a_factor() -> None:
    factor = factor_of(hessian_of(inputs(400, 64)))
    weight = weights(32, 64)
    whole = gptq(weight, factor, INT4)
    parts = [gptq(part, factor, INT4) for part in weight.chunk(2)]
    # Products of other shapes may sum in another order: allow a row whose tie falls otherwise.
    same = (whole.codes == torch.cat([part.codes for part in parts])).all(1)
    assert int((~same).sum()) <= 1
    again = gptq(weight, factor, INT4)
    assert torch.equal(whole.codes, again.codes)
    assert torch.equal(whole.scale, again.scale)


@pytest.mark.parametrize(
    ("case", "calibrated"),
    [("no tokens", False), ("nan", False), ("one token", True), ("dead channel", True)],
)
def test_hessians_without_information_give_a_defined_result(case: str, calibrated: bool) -> None:
    x = inputs(200, 48)
    if case == "no tokens":
        x = x[:0]
    elif case == "nan":
        x[3, 4] = torch.nan
    elif case == "one token":
        x = x[:1]
    else:
        x[:, 7] = 0.0
    weight = weights(16, 48)
    hessian = hessian_of(x)
    factor = factorise(hessian, damp=DAMP)
    found = gptq(weight, factor, INT4)
    assert found.calibrated is calibrated
    assert bool(torch.isfinite(found.scale).all())
    assert bool((found.scale > 0).all())
    assert bool(torch.isfinite(found.loss).all())
    if not calibrated:
        nearest = torch.round(weight / found.scale).clamp(-8, 7).to(torch.int8)
        assert torch.equal(found.codes, nearest)
        assert torch.equal(descend(weight, found, factor, INT4).codes, nearest)
    if case == "dead channel":
        alone = torch.round(weight[:, 7] / found.scale[:, 0])
        assert int((alone - found.codes[:, 7].float()).abs().max()) <= 1


def test_a_row_of_zeros_gets_a_positive_scale() -> None:
    weight = weights(4, 48)
    weight[2] = 0.0
    found = gptq(weight, factor_of(hessian_of(inputs(200, 48))), INT4)
    assert bool((found.scale > 0).all())
    assert not bool(found.codes[2].any())


def naive_descent(weight: Tensor, start: Rounded, h: Array, grid: Grid) -> Array:
    """One sweep of coordinate descent, every column from a full product; codes."""
    w, step = weight.double().numpy(), start.scale.double().numpy()
    codes = start.codes.double().numpy().copy()
    for j in range(w.shape[1]):
        gradient = (w - step * codes) @ h[:, j]
        best = codes[:, j] + gradient / (h[j, j] * step[:, 0])
        codes[:, j] = np.clip(np.round(best), grid.low, grid.high)
    return codes


@pytest.mark.parametrize("width", [40, 290])
def test_descent_equals_the_naive_one_and_lowers_the_loss(width: int) -> None:
    x, weight = inputs(3 * width, width), weights(24, width)
    hessian = hessian_of(x)
    factor = factor_of(hessian)
    start = gptq(weight, factor, INT4)
    found = descend(weight, start, factor, INT4)
    h = hessian.double().numpy() + factor.damping * np.eye(width)
    expected = naive_descent(weight, start, h, INT4)
    assert int((found.codes.numpy() != expected).any(1).sum()) <= 2
    assert bool((found.loss <= start.loss * (1 + 1e-5)).all())
    ours = quadratic(weight, stored_of(found), hessian, factor.damping)
    np.testing.assert_allclose(found.loss.numpy(), ours, rtol=1e-3)
    print(f"loss after a sweep: {float(found.loss.sum() / start.loss.sum()):.3f}")
    assert float(found.loss.sum()) < 0.98 * float(start.loss.sum())


def test_the_factor_of_a_large_matrix_is_that_of_float64() -> None:
    hessian = hessian_of(inputs(1500, 1100) @ torch.eye(1100))
    fast, exact = factor_of(hessian), factor_of(hessian.double())
    assert torch.equal(fast.order, exact.order)
    np.testing.assert_allclose(fast.pivots.numpy(), exact.pivots.numpy(), rtol=1e-3)
    off = (fast.feedback - exact.feedback).abs().max()
    print(f"largest difference of the feedback {float(off):.1e}")
    assert float(off) < 1e-3
    assert not torch.equal(fast.feedback, exact.feedback)


def test_accumulated_moments_equal_numpy() -> None:
    x, token_weights = inputs(60, 800), torch.rand(60)
    result = torch.zeros(800, 800, dtype=torch.float64)
    accumulate(result, x[:25], token_weights[:25])
    accumulate(result, x[25:], token_weights[25:])
    exact = x.double().numpy()
    expected = (exact * token_weights.double().numpy()[:, None]).T @ exact
    np.testing.assert_allclose(symmetric(result).numpy(), expected, rtol=1e-9, atol=1e-9)


def test_grids_of_schemes() -> None:
    assert grid_of(Scheme.W4A8_DYNAMIC) is INT4
    assert grid_of(Scheme.W8A8_DYNAMIC) is INT8
    with pytest.raises(ValueError, match="no integer grid"):
        grid_of(Scheme.FLOAT)
