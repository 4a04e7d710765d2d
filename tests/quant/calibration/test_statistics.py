"""Second moments, samples and spilled matrices against plain formulas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.calibration import spill
from glm5_ascend.quant.calibration.parallel import in_order
from glm5_ascend.quant.calibration.statistics import Moments, Sample
from glm5_ascend.quant.methods.hessian import symmetric

# A value of deviation σ is rounded to a unit of 2 · 4.5 σ / 127 at most: an error of 0.02 σ.
LIMIT = 0.02


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def summed(*parts: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    moments = Moments(parts[0].shape[1])
    for part in parts:
        moments.add(part, weights)
    return symmetric(moments._sum).double()


@pytest.mark.parametrize(("rows", "width"), [(3, 8), (700, 96), (5000, 64), (40, 1600)])
def test_moments_are_the_products(rows: int, width: int) -> None:
    x = draw(rows, width)
    wanted = x.double().T @ x.double()
    # The unit is 1/127 of a group's largest value, which is twice that of a row at most.
    unit = 2 * float(x.abs().max()) / 127
    noise = unit * float(x.abs().max()) * rows**0.5
    assert float((summed(x) - wanted).abs().max()) < noise
    assert float((summed(x) - wanted).norm() / wanted.norm()) < LIMIT


def test_weights_and_rows_of_any_size() -> None:
    """Rows a million times larger than others neither hide them nor are lost."""
    x = draw(600, 32)
    size = 10.0 ** torch.linspace(-6, 3, 600)
    weights = torch.rand(600, generator=torch.Generator().manual_seed(1))
    weights[::7] = 0
    found = summed(x * size[:, None], weights=weights)
    scaled = (x * size[:, None]).double()
    wanted = scaled.T @ (scaled * weights.double()[:, None])
    assert float((found - wanted).norm() / wanted.norm()) < LIMIT
    small = slice(0, 100)
    part = summed(x[small] * size[small, None], weights=weights[small])
    exact = scaled[small].T @ (scaled[small] * weights[small].double()[:, None])
    assert float((part - exact).norm() / exact.norm()) < LIMIT


def test_nothing_is_learned_from_zeros() -> None:
    moments = Moments(16)
    moments.add(torch.zeros(5, 16))
    moments.add(torch.zeros(0, 16))
    assert moments.factor(0.01, 1.0) is None


def test_the_average_and_the_diagonal_stand_in_for_rows() -> None:
    x, other = draw(50, 16, seed=1), draw(400, 16, seed=2)
    weights = torch.rand(50, generator=torch.Generator().manual_seed(3)) + 0.1
    moments, average = Moments(16), Moments(16)
    moments.add(x, weights)
    average.add(other)
    moments.add_average(average, 32.0)
    factor = moments.factor(0.0, 2.0)
    assert factor is not None
    exact = x.double().T @ (x.double() * weights.double()[:, None])
    exact += other.double().T @ other.double() * (32.0 * float(weights.mean()) / 400)
    w = weights.double()
    exact.diagonal().mul_(1 + 2.0 * (16 * float(w.square().sum() / w.sum() ** 2)) ** 2)
    upper = factor.feedback.double()
    found = upper @ torch.diag(factor.pivots.double()) @ upper.T
    assert float((found - exact[factor.order][:, factor.order]).norm() / exact.norm()) < LIMIT


def test_a_sample_is_spread_over_the_input() -> None:
    x = torch.arange(1000.0)[:, None]
    sample = Sample(1000, 100)
    for start in range(0, 1000, 37):
        sample.add(x[start : start + 37])
    assert torch.equal(sample.rows(), x[::10])


def test_spilled_matrices(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    made = spill.create(path, 5, 3)
    made[2] = torch.tensor([1.0, 2.0, 3.0])
    assert not path.exists()
    spill.keep(path)
    found = spill.open_rows(path, 5, 3)
    assert found[2].tolist() == [1.0, 2.0, 3.0]
    assert float(found.sum()) == 6.0
    with pytest.raises(CheckpointError, match="it has 60 bytes, not 72"):
        spill.open_rows(path, 6, 3)
    spill.discard(path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match="No such file"):
        spill.open_rows(path, 5, 3)


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order(threads: int) -> None:
    assert list(in_order(lambda n: n * n, range(20), threads)) == [n * n for n in range(20)]

    def fails(n: int) -> int:
        if n == 5:
            raise ValueError(n)
        return n

    with pytest.raises(ValueError, match="5"):
        list(in_order(fails, range(20), threads))
