"""The fixture that keeps unwritten output from passing by chance."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.usefixtures("poison_empty")
def test_uninitialised_memory_is_poisoned() -> None:
    import torch

    x = torch.ones(2, 3, dtype=torch.bfloat16)
    made = [
        torch.empty(2, 3),
        torch.empty_like(x),
        x.new_empty(4),
        torch.empty_strided((2, 2), (2, 1)),
        torch.empty(3, dtype=torch.float64),
    ]
    assert all(bool(t.isnan().all()) for t in made)
    assert torch.empty(2, dtype=torch.int8).tolist() == [-128, -128]
    assert torch.empty(2, dtype=torch.bool).tolist() == [True, True]


def test_the_poison_ends_with_the_test() -> None:
    import torch

    assert torch.empty.__name__ == "empty"
    assert type(torch.empty).__name__ == "builtin_function_or_method"
