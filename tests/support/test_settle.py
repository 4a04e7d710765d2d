"""Settled ties: what the reference's codes may decide and what they may not hide."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.support.choices import Choices
from tests.support.settle import TieBreaker

REFERENCE = {
    "a": torch.tensor([[10, -3, 127], [1, 2, 127]], dtype=torch.int8),
    "experts": torch.tensor([[[5, 127], [127, 0]]], dtype=torch.int8),
}


def settle(breaker: TieBreaker, scaled: list[float]) -> list[int]:
    values = torch.tensor([scaled])
    codes: list[int] = breaker.settle(values, values.round().to(torch.int8))[0].tolist()
    return codes


def test_only_near_ties_are_settled(tmp_path: Path) -> None:
    Choices(codes=REFERENCE).save(tmp_path / "codes")
    breaker = TieBreaker.load(tmp_path / "codes")
    assert settle(breaker, [10.505, -3.2, 127.0]) == [10, -3, 127]
    assert settle(breaker, [127.0, 0.5001]) == [127, 0]
    assert (breaker.settled, breaker.unknown) == (2, 0)
    # 0.02 steps beyond the tie is an error of the implementation, not noise.
    assert settle(breaker, [10.52, -3.2, 127.0]) == [11, -3, 127]
    assert settle(breaker, [40.0, 127.0]) == [40, 127]
    assert settle(breaker, [1.0, 2.0, 3.0, 127.0]) == [1, 2, 3, 127]
    assert (breaker.settled, breaker.unknown) == (2, 3)


def test_wrapped_quantiser() -> None:
    def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return torch.round(x / scale).to(torch.int8), scale

    x = torch.tensor([[[10.5001, -3.0, 127.0]], [[1.0, 2.0, 127.0]]])
    codes, scale = TieBreaker(REFERENCE).wrap(quantise)(x)
    assert codes.tolist() == [[[10, -3, 127]], [[1, 2, 127]]]
    assert torch.equal(scale, torch.ones(2, 1, 1))
