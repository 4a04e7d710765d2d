"""Int8 linear layers: exact integers, rounding, saturation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glm5_ascend.ops import (
    dynamic_quant,
    linear_w8a8_dynamic,
    linear_w8a8_static,
)
from tests.support.compare import assert_close, assert_identical


@pytest.fixture(autouse=True, params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test of this file runs with each backend as the one that ``auto`` takes."""
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", request.param)
    return str(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dynamic_quant_rounds_half_to_even_and_scales_by_127(dtype: torch.dtype) -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, -127]]).to(dtype)
    codes, scale = dynamic_quant(torch.cat((x, x * 0, x / 4)))
    wanted = [127, 0, 2, 2, 0, -2, -126, -127]
    assert codes.tolist() == [wanted, [0] * 8, wanted]
    assert scale.tolist() == [[1.0], [0.0], [0.25]]
    assert (codes.dtype, scale.dtype) == (torch.int8, torch.float32)


def test_dynamic_quant_equals_numpy_in_single_precision() -> None:
    torch.manual_seed(0)
    x = torch.randn(213, 192) * torch.logspace(-20, 20, 213)[:, None]
    codes, scale = dynamic_quant(x)
    wanted = np.abs(x.numpy()).max(-1, keepdims=True) / np.float32(127)
    assert (scale.numpy() == wanted).all()
    assert (codes.numpy() == np.rint(x.numpy() / wanted)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_dynamic_linear(dtype: torch.dtype, with_bias: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(62, 192).to(dtype)
    weight = torch.randint(-127, 128, (50, 192), dtype=torch.int8)
    scale = (torch.rand(50, 1) * 0.01).to(dtype)
    bias = torch.randn(50).to(dtype) if with_bias else None
    rows = x.float().numpy()
    x_scale = np.abs(rows).max(-1, keepdims=True) / np.float32(127)
    codes = np.rint(rows / x_scale).astype(np.int64)
    products = codes @ weight.numpy().T.astype(np.int64)

    def oracle(kind: type) -> torch.Tensor:
        y = products.astype(kind) * scale.double().numpy().astype(kind)[:, 0] * x_scale.astype(kind)
        return torch.from_numpy(y + (bias.double().numpy().astype(kind) if with_bias else kind(0)))

    y = linear_w8a8_dynamic(x, weight, scale, bias)
    assert_close(y, oracle(np.float64), oracle(np.float32).to(dtype))
    assert_identical(linear_w8a8_dynamic(x.view(2, 31, 192), weight, scale, bias).view(62, 50), y)
    assert_identical(
        linear_w8a8_dynamic(x.T.contiguous().T, weight.T.contiguous().T, scale, bias), y
    )
    assert linear_w8a8_dynamic(x[:0], weight, scale).shape == (0, 50)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset_dtype", [torch.int8, torch.float32])
def test_static_linear(dtype: torch.dtype, offset_dtype: torch.dtype) -> None:
    """The identity of the format: y = s_x s_w (x_q - z) . w_q + b, with b and z in quant_bias."""
    torch.manual_seed(0)
    x = (torch.randn(62, 192) + 0.7).to(dtype)
    weight = torch.randint(-127, 128, (50, 192), dtype=torch.int8)
    input_scale = torch.tensor([0.0234375]).to(dtype)  # BF16-exact; some inputs saturate
    offset = torch.tensor([-27]).to(offset_dtype)
    weight_scale = torch.rand(50) * 0.01
    deq_scale = input_scale.float() * weight_scale
    bias = torch.randn(50)
    row_sums = weight.long().sum(1)
    quant_bias = torch.round(bias / deq_scale - offset.float() * row_sums).int()
    y = linear_w8a8_static(x, weight, input_scale, offset, quant_bias, deq_scale)
    codes = np.clip(np.rint(x.float().numpy() / np.float32(0.0234375) - 27), -128, 127)
    assert (codes == 127).any()
    products = codes.astype(np.int64) @ weight.numpy().T.astype(np.int64) + quant_bias.numpy()

    def oracle(kind: type) -> torch.Tensor:
        return torch.from_numpy(products.astype(kind) * deq_scale.numpy().astype(kind))

    assert_close(y, oracle(np.float64), oracle(np.float32).to(dtype))
    real = (torch.from_numpy(codes).double() + 27) @ (weight.double() * deq_scale[:, None]).T + bias
    torch.testing.assert_close(
        y.double(), real, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=3e-3
    )


def test_contradictions_are_refused() -> None:
    x, weight = torch.randn(3, 8), torch.zeros(5, 8, dtype=torch.int8)
    one, five = torch.ones(1), torch.ones(5)
    with pytest.raises(ValueError, match="int8"):
        linear_w8a8_dynamic(x, weight.float(), five[:, None])
    with pytest.raises(ValueError, match="int8"):
        linear_w8a8_dynamic(x[:, :7], weight, five[:, None])
    with pytest.raises(ValueError, match="weight_scale"):
        linear_w8a8_dynamic(x, weight, five)
    with pytest.raises(ValueError, match="one element"):
        linear_w8a8_static(x, weight, five, one, five.int(), five)
    with pytest.raises(ValueError, match="quant_bias"):
        linear_w8a8_static(x, weight, one, one, five[:4].int(), five)
