"""Integer products: exact, whatever way they take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glm5_ascend.ops import int_matmul, matmul
from tests.support.compare import assert_identical


@pytest.mark.parametrize("in_float", [False, True], ids=["int8", "float"])
@pytest.mark.parametrize("terms", [1, 48, 192, 1023, 1024, 6144])
@pytest.mark.parametrize("rows", [0, 1, 3, 17, 62])
def test_integer_products_are_exact(
    monkeypatch: pytest.MonkeyPatch, rows: int, terms: int, in_float: bool
) -> None:
    if in_float:
        monkeypatch.setattr(matmul, "_int_mm_is_exact", lambda: False)
    torch.manual_seed(0)
    x = torch.randint(-128, 128, (rows, terms), dtype=torch.int8)
    weight = torch.randint(-128, 128, (50, terms), dtype=torch.int8)
    x[:1], weight[:2] = -128, -128  # 2^14 * terms: beyond 2^24 for the longest
    product = int_matmul(x, weight)
    assert_identical(int_matmul(x.T.contiguous().T, weight.T.contiguous().T), product)
    assert product.dtype == torch.int32
    assert product.tolist() == (x.numpy().astype(np.int64) @ weight.numpy().T.astype(int)).tolist()


def test_a_saturating_int8_product_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def pairs_in_16_bits(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        pairs = (x.int() + 128)[..., None] * weight.int()
        total = (pairs[:, ::2] + pairs[:, 1::2]).clamp(-32768, 32767).sum(1)
        return (total - 128 * weight.int().sum(0)).int()

    monkeypatch.setattr(torch, "_int_mm", pairs_in_16_bits)
    assert not matmul._int_mm_is_exact.__wrapped__()
