"""Learned rotations are exactly orthogonal and lower the error on rows they never saw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import dynamic_quant
from glm5_ascend.quant.methods.grid import INT4
from glm5_ascend.quant.methods.learned_rotation import (
    Columns,
    Learned,
    Rows,
    Samples,
    block_size,
    learn_rotation,
)
from glm5_ascend.quant.methods.scales import weighted_scale
from glm5_ascend.quant.refinement import refined
from glm5_ascend.quant.rotation import hadamard

WIDTH = 96


def tokens(count: int, seed: int) -> Tensor:
    """Near a low-dimensional subspace, as activations are, in a rotated basis."""
    basis = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator) @ basis
    x += 0.2 * torch.randn(count, WIDTH, generator=generator)
    return hadamard("R1", WIDTH, 1).rows(x * torch.logspace(-2, 2, count).unsqueeze(1))


@pytest.fixture(scope="module")
def inputs() -> Tensor:
    return tokens(2000, 0)


def learned_from(*samples: Samples, steps: int = 60) -> Learned:
    found = learn_rotation(samples, WIDTH, steps=steps)
    assert found is not None
    return found


def relative_error(x: Tensor) -> float:
    codes, scale = dynamic_quant(x)
    difference = (codes.float() * scale - x).square().sum(1)
    return float((difference / x.square().sum(1)).mean())


def int4_error(weight: Tensor) -> float:
    scale = weighted_scale(weight.float(), None, INT4)
    difference = weight.float() - INT4.codes(weight.float(), scale) * scale
    return float(difference.square().sum() / weight.square().sum())


def matrix(learned: Learned) -> Tensor:
    return torch.block_diag(*learned.blocks)


def test_orthogonal_and_better_on_other_tokens(inputs: Tensor) -> None:
    learned = learned_from(Rows(inputs.view(-1, 1, WIDTH)))
    q = matrix(learned)
    assert float((q.T @ q - torch.eye(WIDTH, dtype=torch.float64)).abs().max()) < 1e-12
    assert learned.after < 0.75 * learned.before
    unseen = tokens(1000, 1)
    plain, turned = relative_error(unseen), relative_error(unseen @ q.float())
    print(f"{plain:.3e} -> {turned:.3e}")
    assert turned < 0.75 * plain


def test_noise_gains_nothing() -> None:
    """Half of the rows would fit; the others say no, and the rotation stays as it is."""
    noise = torch.randn(60, 1, WIDTH, generator=torch.Generator().manual_seed(2))
    assert learn_rotation([Rows(noise)], WIDTH) is None
    assert learn_rotation([Rows(noise, is_whole=True)], WIDTH, steps=30) is not None


def test_weights_that_read_and_weights_that_write() -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(200, WIDTH, generator=generator)
    reading = learned_from(Rows(weight.view(-1, 1, WIDTH), is_whole=True))
    assert int4_error(weight.double() @ matrix(reading)) < 0.9 * int4_error(weight)
    columns = torch.randn(4, WIDTH, 48, generator=generator)
    writing = learned_from(Columns(columns))
    turned = torch.cat(list(matrix(writing).T @ columns.double()))
    assert int4_error(turned) < 0.9 * int4_error(columns.reshape(-1, 48))


@pytest.mark.parametrize("kind", ["rows", "parts", "columns"])
def test_value_and_slope(inputs: Tensor, kind: str) -> None:
    """The value against NumPy, the slope against autograd."""
    blocks = torch.linalg.qr(
        torch.randn(2, 48, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ).Q
    dense = torch.block_diag(*blocks).numpy()
    samples: Samples
    if kind == "columns":
        columns = inputs[:60].reshape(4, WIDTH, 15)
        samples = Columns(columns)
        w = columns.double().numpy()
        w = w / np.sqrt((w**2).mean((1, 2), keepdims=True))
        turned = (dense.T @ w).reshape(-1, 15)
    else:
        parts = 2 if kind == "parts" else 1
        rows = inputs[: 40 * parts].reshape(40, parts, WIDTH).clone()
        rows[7] = 0.0
        samples = Rows(rows)
        x = np.delete(rows.double().numpy(), 7, axis=0)
        x = x / np.sqrt((x**2).mean((1, 2), keepdims=True))
        turned = (x @ dense).reshape(39, -1)
    wanted = ((turned**8).mean(1) ** 0.25).mean()
    value, slope = samples.value_and_slope(blocks)
    assert value == pytest.approx(wanted, rel=1e-12)
    for at in ((0, 3, 5), (1, 20, 0), (1, 7, 23)):
        moved = []
        for sign in (1, -1):
            shifted = blocks.clone()
            shifted[at] += sign * 1e-6
            moved.append(samples.value_and_slope(shifted)[0])
        assert float(slope[at]) == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-4)


def test_weights_of_the_objective(inputs: Tensor) -> None:
    """A sample of no weight changes nothing, one of all the weight is as if it were alone."""
    rows = Rows(inputs.view(-1, 1, WIDTH))
    other = Columns(torch.randn(2, WIDTH, 8, generator=torch.Generator().manual_seed(1)), 0.0)
    assert torch.equal(
        learned_from(rows, steps=9).blocks, learned_from(rows, other, steps=9).blocks
    )


def test_repeats(inputs: Tensor) -> None:
    rows = Rows(inputs.view(-1, 1, WIDTH))
    first, again = (learned_from(rows, steps=10) for _ in range(2))
    assert torch.equal(first.blocks, again.blocks)


def test_behind_a_rotation_is_its_product(inputs: Tensor) -> None:
    base = hadamard("R1", WIDTH, 7)
    learned = learned_from(Rows(base.rows(inputs).view(-1, 1, WIDTH)), steps=5)
    product = refined(base, learned.blocks)
    assert (product.name, product.size) == (base.name, base.size)
    assert torch.allclose(product.dense(), base.dense() @ matrix(learned), atol=1e-13)


@pytest.mark.parametrize(("size", "wanted"), [(6144, 256), (2048, 256), (192, 192), (262, 131)])
def test_blocks(size: int, wanted: int) -> None:
    assert block_size(size) == wanted
