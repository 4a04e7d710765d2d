"""Learned rotations are exactly orthogonal and lower the error on tokens they never saw."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glm5_ascend.demo import SMALL_MODEL
from glm5_ascend.ops import dynamic_quant
from glm5_ascend.quant.evaluation.windows import read_windows
from glm5_ascend.quant.methods.learned_rotation import (
    Learned,
    _objective,
    learn_rotation,
    objective,
)
from glm5_ascend.quant.rotation import hadamard
from glm5_ascend.simulator.model import OfflineModel

WIDTH = 96


@pytest.fixture(scope="module")
def inputs() -> Tensor:
    """Tokens near a low-dimensional subspace, as activations are, in a rotated basis."""
    generator = torch.Generator().manual_seed(4)
    basis = torch.randn(6, WIDTH, generator=generator)
    x = torch.randn(3000, 6, generator=generator) @ basis
    x += 0.2 * torch.randn(3000, WIDTH, generator=generator)
    return hadamard("R1", WIDTH, 1).rows(x * torch.logspace(-2, 2, 3000).unsqueeze(1))


def relative_error(x: Tensor) -> float:
    codes, scale = dynamic_quant(x)
    difference = (codes.float() * scale - x).square().sum(1)
    return float((difference / x.square().sum(1)).mean())


def matrix(learned: Learned) -> Tensor:
    return learned.rows(torch.eye(WIDTH, dtype=torch.float64))


@pytest.mark.parametrize("block", [None, 24])
def test_orthogonal_and_better_on_other_tokens(inputs: Tensor, block: int | None) -> None:
    learned = learn_rotation(inputs[::2], block=block, steps=60)
    q = matrix(learned)
    assert float((q.T @ q - torch.eye(WIDTH, dtype=torch.float64)).abs().max()) < 1e-12
    assert learned.after < learned.before
    unseen = inputs[1::2]
    plain, turned = relative_error(unseen), relative_error(learned.rows(unseen))
    print(f"block {block}: {plain:.3e} -> {turned:.3e}")
    assert turned < (0.75 if block is None else 0.9) * plain
    if block is not None:
        outside = q.clone()
        for start in range(0, WIDTH, block):
            outside[start : start + block, start : start + block] = 0.0
        assert not bool(outside.any())


def test_seeds_and_repeats(inputs: Tensor) -> None:
    first, again = (learn_rotation(inputs, steps=10, tokens=300) for _ in range(2))
    other = learn_rotation(inputs, steps=10, tokens=300, seed=1)
    assert torch.equal(first.blocks, again.blocks)
    assert not torch.equal(first.blocks, other.blocks)


def test_gradient_equals_finite_differences(inputs: Tensor) -> None:
    sample = inputs[:20].double().view(20, 2, 2, 24)
    rotation = torch.linalg.qr(
        torch.randn(2, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ).Q
    _, gradient = _objective(sample, rotation)
    for at in ((0, 3, 5), (1, 20, 0), (1, 7, 23)):
        moved, step = [], 1e-6 * float(rotation.abs().max())
        for sign in (1, -1):
            shifted = rotation.clone()
            shifted[at] += sign * step
            moved.append(_objective(sample, shifted)[0])
        assert float(gradient[at]) == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-4)


def test_heads_share_one_matrix_and_one_scale(inputs: Tensor) -> None:
    x = torch.cat((inputs[:1500], 0.1 * inputs[1500:]), 1)
    learned = learn_rotation(x, heads=2, steps=20, tokens=500)
    assert learned.blocks.shape == (1, WIDTH, WIDTH)
    turned = learned.rows(x.view(-1, 2, WIDTH)).reshape(x.shape)
    assert learned.after < learned.before
    assert objective(turned, 2) < objective(x, 2)


def test_behind_a_rotation_is_its_product(inputs: Tensor) -> None:
    base = hadamard("R1", WIDTH, 7)
    learned = learn_rotation(base.rows(inputs[:400]), block=32, steps=5)
    product = learned.behind(base)
    assert (product.name, product.size) == (base.name, base.size)
    assert torch.allclose(product.dense(), base.dense() @ matrix(learned), atol=1e-13)


def test_refusals(inputs: Tensor) -> None:
    with pytest.raises(ValueError, match="blocks of 36"):
        learn_rotation(inputs, block=36)
    with pytest.raises(ValueError, match="without tokens"):
        learn_rotation(torch.zeros(4, 8))


def feed_forward_inputs(model: OfflineModel, tokens: Tensor, layers: int = 3) -> list[Tensor]:
    """Inputs of the feed-forward blocks of the first layers in the rotated basis, γ left out."""
    rotation = hadamard("R1", model.config.hidden_size, 1)
    hidden, shared, found = model.embedding[tokens], None, []
    for layer in model.layers[:layers]:
        out, shared = layer.attention(
            layer.input_norm(hidden), torch.arange(len(tokens)), shared, None
        )
        hidden = hidden + out
        normed = hidden / hidden.square().mean(1, keepdim=True).sqrt()
        found.append(rotation.rows(normed.double()).float())
        hidden = hidden + layer.mlp(layer.post_norm(hidden), None)[0]
    return found


@pytest.mark.parametrize("block", [None, 64])
def test_one_rotation_serves_all_layers_of_the_trained_model(block: int | None) -> None:
    """What ``quant/methods/README.md`` says of the residual stream, on fewer tokens."""
    model = OfflineModel.load(SMALL_MODEL)
    windows = read_windows(SMALL_MODEL, model.config, None, 5 * 512).windows
    with torch.inference_mode():
        parts = [feed_forward_inputs(model, window.tokens) for window in windows]
    known = torch.cat([torch.cat(part) for part in parts[:4]])
    learned = learn_rotation(known, block=block, steps=40, tokens=1500)
    for x in parts[4]:
        ratio = relative_error(learned.rows(x)) / relative_error(x)
        print(f"block {block}: {ratio:.3f}")
        assert ratio < 0.85
