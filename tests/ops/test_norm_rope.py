"""Norms and rotary embedding against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from glm5_ascend.ops import layer_norm, rms_norm, rotary_interleaved, rotary_table
from glm5_ascend.ops.verify.formula import rotate
from tests.support.compare import assert_close, assert_identical

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True, params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test of this file runs with each backend as the one that ``auto`` takes."""
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", request.param)
    return str(request.param)


def _numpy(x: torch.Tensor, kind: Any) -> np.ndarray:
    return x.double().numpy().astype(kind)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(2, 31, 192, dtype=torch.float64) * torch.logspace(-4, 2, 31)[:, None]).to(
        dtype
    )
    weight = torch.randn(192, dtype=torch.float64).to(dtype)

    def oracle(kind: Any) -> torch.Tensor:
        a, w = _numpy(x, kind), _numpy(weight, kind)
        normed = a / np.sqrt((a * a).mean(-1, keepdims=True) + kind(1e-5))
        if dtype == torch.bfloat16:  # rounded before the weight, as transformers does
            return torch.from_numpy(normed).bfloat16().double() * weight.double()
        return torch.from_numpy(normed * w)

    y = rms_norm(x, weight, 1e-5)
    if dtype == torch.float64:
        torch.testing.assert_close(y, oracle(np.float64), rtol=1e-13, atol=1e-15)
    else:
        assert_close(y, oracle(np.float64), oracle(np.float32).to(dtype))


def test_rms_norm_rounds_before_the_weight() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(31, 192).bfloat16(), torch.randn(192).bfloat16()
    wide = x.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    wanted = (normed.bfloat16().float() * weight.float()).bfloat16()
    # F32 sums may move a value across a border between two BF16 numbers, rarely.
    assert (rms_norm(x, weight, 1e-5) != wanted).double().mean() < 0.01


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(62, 128, dtype=torch.float64) + 0.5).to(dtype)
    weight = torch.randn(128, dtype=torch.float64).to(dtype)
    bias = torch.randn(128, dtype=torch.float64).to(dtype)

    def oracle(kind: Any) -> torch.Tensor:
        a, w, b = (_numpy(t, kind) for t in (x, weight, bias))
        centred = a - a.mean(-1, keepdims=True)
        scale = np.sqrt((centred * centred).mean(-1, keepdims=True) + kind(1e-6))
        return torch.from_numpy(centred / scale * w + b)

    y = layer_norm(x, weight, bias)
    if dtype == torch.float64:
        torch.testing.assert_close(y, oracle(np.float64), rtol=1e-12, atol=1e-13)
    else:
        assert_close(y, oracle(np.float64), oracle(np.float32).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_of_neighbouring_pairs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    positions = torch.tensor([0, 1, 2, 63, 64, 300])
    x = torch.randn(6, 4, 64, dtype=torch.float64).to(dtype)
    y = rotary_interleaved(x, positions, 8e6)
    cos, sin = rotary_table(positions, 64, 8e6)
    assert cos.dtype == sin.dtype == torch.float32
    wanted = np.stack(
        [rotate(_numpy(x[t], np.float64), int(p), 8e6) for t, p in enumerate(positions)]
    )
    # F32 angles: position 300 times 2^-24.
    limit = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    assert float((y.double() - torch.from_numpy(wanted)).abs().max()) < limit
    assert_identical(rotary_interleaved(x, cos=cos, sin=sin), y)
    assert_identical(rotary_interleaved(x[:, 0], positions, 8e6), y[:, 0].contiguous())
    assert_identical(y[0], x[0])


def test_angles_are_those_of_transformers_and_vllm() -> None:
    positions = torch.tensor([0, 7, 1023, 202751, 1048575])
    cos, sin = rotary_table(positions, 64, 8e6)
    frequency = 1.0 / (8e6 ** (torch.arange(0, 64, 2).float() / 64))
    angle = torch.outer(positions.float(), frequency)
    assert_identical(cos, angle.cos())
    assert_identical(sin, angle.sin())


def test_rotation_depends_on_the_distance_only() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 64, dtype=torch.float64)
    dots = [
        float(
            rotary_interleaved(q, torch.tensor([p + 5]), 1e4)
            @ rotary_interleaved(k, torch.tensor([p]), 1e4)[0]
        )
        for p in (0, 1, 100)
    ]
    assert max(dots) - min(dots) < 1e-4
    assert abs(dots[0] - float(q @ k[0])) > 1e-2


def test_contradictions_are_refused() -> None:
    x = torch.randn(3, 8)
    with pytest.raises(ValueError, match="weight"):
        rms_norm(x, torch.ones(7), 1e-5)
    with pytest.raises(ValueError, match="weight"):
        layer_norm(x, torch.ones(8), torch.ones(7))
    with pytest.raises(ValueError, match="either"):
        rotary_interleaved(x, torch.arange(3))
    with pytest.raises(ValueError, match="does not fit"):
        rotary_interleaved(x, torch.arange(4), 1e4)
    with pytest.raises(ValueError, match="dim must be even, two for each angle, not 7"):
        rotary_interleaved(x[:, :7], torch.arange(3), 1e4)
    with pytest.raises(ValueError, match="positions must be on the device of x, cpu, not on meta"):
        rotary_interleaved(x, torch.arange(3, device="meta"), 1e4)
