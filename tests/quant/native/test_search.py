"""Scales of the kernels are at least as good as those of the search in torch, row by row too."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from glm5_ascend.demo import SMALL_MODEL
from glm5_ascend.quant.native import Source, fold, kernel_axis
from glm5_ascend.quant.packing import unpack_rows
from glm5_ascend.quant.rotation import hadamard, on_columns
from glm5_ascend.quant.rounding import relative_error, round_int4, round_int8
from tests.quant.native.problems import axis, is_bfloat16, misfit

NONE = kernel_axis(None, {})
BITS = (4, 8)


def rounded(weight: torch.Tensor, bits: int, *, search: bool = True) -> tuple[torch.Tensor, ...]:
    found = fold(Source(weight), NONE, NONE, bits, search=search)
    return (unpack_rows(found.codes) if bits == 4 else found.codes), found.scale


@cache
def draws() -> dict[str, torch.Tensor]:
    """Weights [rows, columns] in float32, of the shapes and tails that models have and worse."""
    gen = np.random.default_rng(5)
    outliers = gen.normal(size=(64, 2048))
    outliers[:, ::97] *= 20
    real = load_file(SMALL_MODEL / "model.safetensors")
    experts = [t.float() for name, t in real.items() if ".experts." in name and t.shape[0] % 2 == 0]
    width = experts[0].shape[1]
    turn = hadamard("R1", width, 1234)
    rotated = on_columns(experts[0].double(), axis(("R1", width)), {"R1": turn})
    values = {
        "gaussian 6144": 0.02 * gen.normal(size=(64, 6144)),
        "gaussian 2048": 0.02 * gen.normal(size=(64, 2048)),
        "laplace 2048": gen.laplace(size=(64, 2048)),
        "student-t 4": 1e-3 * gen.standard_t(4, size=(64, 6144)),
        "uniform": gen.uniform(-1, 1, size=(64, 2048)),
        "one-sided": np.abs(gen.normal(size=(64, 2048))),
        "outliers": outliers,
        "narrow": gen.normal(size=(256, 96)),
        "real": experts[1],
        "real, rotated": rotated,
    }
    return {name: torch.as_tensor(value).float() for name, value in values.items()}


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", list(draws()))
def test_error_is_that_of_the_search_in_torch(name: str, bits: int) -> None:
    weight = draws()[name]
    found = relative_error(weight, *rounded(weight, bits))
    wanted = relative_error(weight, *(round_int4 if bits == 4 else round_int8)(weight))
    print(f"{name}, int{bits}: {found:.5e}, {100 * (found / wanted - 1):+.3f} % of {wanted:.5e}")
    assert found <= 1.001 * wanted


@pytest.mark.parametrize("name", list(draws()))
def test_int4_scales_are_fitted_to_their_codes(name: str) -> None:
    """scale = Σ w q / Σ q², but for codes that change at the last fit."""
    codes, scale = rounded(draws()[name], 4)
    assert misfit(draws()[name], codes, scale) < 5e-4
    assert not is_bfloat16(scale)


def test_a_far_outlier_is_clipped_where_that_pays() -> None:
    """The grid in torch ends at 0.28 of the range; one weight of 25 deviations asks for less."""
    weight = torch.randn(8, 6144, generator=torch.Generator().manual_seed(1))
    weight[:, 100] = 25.0
    found = relative_error(weight, *rounded(weight, 4))
    assert found < 0.9 * relative_error(weight, *round_int4(weight))


@pytest.mark.parametrize("bits", BITS)
def test_odd_rows(bits: int) -> None:
    weight = torch.zeros(12, 64)
    weight[1] = 1e-38
    weight[2, 5], weight[3] = -3.0, 0.25
    weight[4, 0], weight[5] = 1e30, -1e-20
    weight[6], weight[7] = 1e-45, -7.0
    weight[8, :2] = torch.tensor([-8.0, 7.0])
    weight[9] = torch.arange(64) % 16 - 8.0
    weight[10, 63] = 3e38
    weight[11] = -weight[9]
    codes, scale = rounded(weight, bits)
    assert bool(torch.isfinite(scale).all())
    assert bool((scale > 0).all())
    for row in (0, 1, 6):
        assert not codes[row].any()
        assert float(scale[row]) == 1.0
    back = codes.double() * scale.double()
    # A row on the grid of a scale is given back; BF16 has no 1/127 of everything.
    limit = {4: 1e-4, 8: 2.0**-8}[bits]
    for row in (2, 3, 4, 5, 7, 10):
        assert torch.allclose(back[row], weight[row].double(), rtol=limit, atol=0.0), row
    if bits == 4:
        for row in (8, 9):
            assert torch.allclose(back[row], weight[row].double(), rtol=1e-4, atol=1e-9), row
        assert (back[11] - weight[11]).abs().max() <= 1.0


@pytest.mark.parametrize("bits", BITS)
def test_ties_go_to_even(bits: int) -> None:
    weight = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 7.0 if bits == 4 else 127.0, 3.5]])
    codes, scale = rounded(weight.repeat(2, 1), bits, search=False)
    assert float(scale[0]) == 1.0
    assert codes[0].tolist()[:6] == [0, 2, 2, 0, -2, -2]
    assert codes[0].tolist()[7] == 4


@pytest.mark.parametrize("bits", BITS)
def test_rows_that_are_not_finite_have_no_scale(bits: int) -> None:
    """A rotation of finite weights may overflow; whoever stores the scale refuses it."""
    weight = torch.full((2, 96), 3e38)
    turn = kernel_axis(axis(("R1", 96)), {"R1": hadamard("R1", 96, None)})
    found = fold(Source(weight), turn, NONE, bits)
    assert not bool(torch.isfinite(found.scale).all())
