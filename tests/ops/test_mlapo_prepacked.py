"""Products with packed weights: exact integers, rows that ignore the batch, life of the cache."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops import int_matmul, prepacked
from tests.ops.test_batch_invariance import assert_rows_ignore_each_other
from tests.support.compare import assert_identical


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    prepacked._packed.clear()


def codes(*size: int) -> Tensor:
    return torch.randint(-128, 128, size, dtype=torch.int8)


@pytest.mark.parametrize("terms", [1, 48, 192, 1000, 6144])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 17, 62])
def test_int8_sums_are_exact(rows: int, terms: int) -> None:
    torch.manual_seed(0)
    x, weight = codes(rows, terms), codes(50, terms)
    wanted = int_matmul(x, weight)
    assert_identical(prepacked.int8_matmul(x, weight, exact=True).int(), wanted)
    rounded = prepacked.int8_matmul(x, weight, exact=False)
    assert_identical(rounded.float(), wanted.float())
    assert_identical(prepacked.int8_matmul(x, weight.T.contiguous().T, exact=True).int(), wanted)
    part = torch.cat((x, x), 1)[:, :terms]
    assert_identical(prepacked.int8_matmul(part, weight, exact=True).int(), wanted)


def test_sums_beyond_f32_are_exact_where_asked() -> None:
    x, weight = torch.full((3, 2048), 127, dtype=torch.int8), codes(7, 2048)
    weight[:2] = 127
    weight[1, 0] = 126
    wanted = int_matmul(x, weight)
    assert int(wanted.max()) > 1 << 24
    got = prepacked.int8_matmul(x, weight, exact=True)
    assert got.dtype == torch.int32
    assert_identical(got, wanted)
    assert_identical(prepacked.int8_matmul(x, weight, exact=False), wanted.float())


def test_a_saturating_product_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def pairs_in_16_bits(x: Tensor, packed: Tensor) -> Tensor:
        return (int_matmul(x, torch.ones(24, x.shape[1], dtype=torch.int8))).float()

    assert prepacked._is_usable.__wrapped__()
    monkeypatch.setattr(prepacked, "_onednn_int8", pairs_in_16_bits)
    assert not prepacked._is_usable.__wrapped__()
    monkeypatch.setattr(prepacked, "_is_usable", lambda: False)
    x, weight = codes(5, 64), codes(9, 64)
    assert_identical(prepacked.int8_matmul(x, weight, exact=False), int_matmul(x, weight))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("terms", "outputs"), [(37, 21), (192, 96), (2048, 320), (6144, 48)])
def test_float_products(terms: int, outputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(70, terms).to(dtype), torch.randn(outputs, terms).to(dtype)
    wanted = x.double() @ weight.double().T
    y = prepacked.float_matmul(x, weight)
    assert y.dtype == dtype
    limit = {torch.float64: 1e-13, torch.float32: 2e-6}.get(dtype, 2 * torch.finfo(dtype).eps)
    assert float((y.double() - wanted).abs().max()) <= limit * float(wanted.abs().max())
    if dtype in (torch.bfloat16, torch.float32):
        assert_rows_ignore_each_other(lambda rows: prepacked.float_matmul(rows, weight), x)


@pytest.mark.parametrize("kind", ["int8", "float"])
def test_packed_weights_live_as_long_as_the_weight(kind: str) -> None:
    weight = codes(16, 32) if kind == "int8" else torch.randn(16, 32)
    x = codes(4, 32) if kind == "int8" else torch.randn(4, 32)

    def product(view: Tensor) -> Tensor:
        if kind == "int8":
            return prepacked.int8_matmul(x, view, exact=True).int()
        return prepacked.float_matmul(x, view)

    def wanted(view: Tensor) -> Tensor:
        return int_matmul(x, view) if kind == "int8" else (x.double() @ view.double().T).float()

    size = weight.nbytes
    for view in (weight, weight.T.T, weight.data, weight.detach()):
        torch.testing.assert_close(product(view), wanted(view))
    assert prepacked.packed_bytes() == size  # one copy for all of them
    torch.testing.assert_close(product(weight[4:12]), wanted(weight[4:12]))
    assert prepacked.packed_bytes() == size + size // 2
    weight.copy_(weight.flip(0))  # counted: packed anew, the old copy dropped
    torch.testing.assert_close(product(weight), wanted(weight))
    assert prepacked.packed_bytes() == size + size // 2
    weight.data.copy_(weight.flip(0))  # not counted by torch
    prepacked.forget(weight)
    assert prepacked.packed_bytes() == 0
    torch.testing.assert_close(product(weight), wanted(weight))
    del weight, view
    gc.collect()
    assert prepacked.packed_bytes() == 0


def test_weights_of_inference_mode() -> None:
    with torch.inference_mode():
        weight = torch.randn(16, 32)
        x = torch.randn(4, 32)
        for _ in range(2):
            torch.testing.assert_close(prepacked.float_matmul(x, weight), x @ weight.T)
        assert prepacked.packed_bytes() == weight.nbytes
