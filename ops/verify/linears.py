"""Conformance of the int8 linear layers and of activation quantisation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify import formula
from glm5_ascend.ops.verify.case import DTYPES
from glm5_ascend.ops.verify.rows import Expected, RowsCase, RowsProblem, Wanted

GROUP = "quant_linear"
# (rows, inputs, outputs); odd ones, and narrow slices of GLM-5's.
SHAPES = ((1, 2048, 62), (62, 192, 213), (3, 1521, 48), (9, 6144, 16))


def cases() -> Iterator[RowsCase]:
    """Every dtype and shape, rows of zeros, codes at ties, saturation."""
    for dtype in DTYPES:
        for rows, inputs, outputs in SHAPES:
            shape = {"rows": rows, "inputs": inputs, "outputs": outputs}
            label = f"{rows}x{inputs}x{outputs}"
            yield _case(f"{rows}x{inputs}", dtype, _dynamic_quant, rows=rows, inputs=inputs)
            yield _case(label, dtype, _linear_w8a8_dynamic, bias=rows > 1, **shape)
            yield _case(label, dtype, _linear_w8a8_static, **shape)
    yield _case("ties", torch.float32, _dynamic_quant, rows=4, inputs=254, ties=True)
    yield _case("tiny", torch.float32, _dynamic_quant, rows=4, inputs=254, std=1e-43)


def _case(size: str, dtype: torch.dtype, make: Any, **options: Any) -> RowsCase:
    return RowsCase(
        group=GROUP,
        label=f"{make.__name__.removeprefix('_')}-{size}-{DTYPES[dtype]}",
        make=partial(make, dtype=dtype, **options),
        size="quick" if dtype == torch.bfloat16 else "normal",
    )


def _activations(seed: int, rows: int, inputs: int, dtype: torch.dtype) -> Tensor:
    """Normal values with an outlier channel; the last of several rows is zero."""
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=gen)
    x[:, inputs // 3] *= 20
    x[1:][-1:] = 0
    return x.to(dtype)


def _weight(seed: int, inputs: int, outputs: int) -> Tensor:
    gen = torch.Generator().manual_seed(seed + 1)
    weight = torch.randint(-128, 128, (outputs, inputs), generator=gen, dtype=torch.int8)
    # A saturated row: exact sums need 32 bits.
    weight[0] = -128
    return weight


def _dynamic_quant(
    seed: int,
    *,
    rows: int,
    inputs: int,
    dtype: torch.dtype,
    ties: bool = False,
    std: float = 1.0,
) -> RowsProblem:
    x = _activations(seed, rows, inputs, dtype) * std
    if ties:
        # Scale 1 exactly: every second value lies between two codes.
        x = (torch.arange(inputs) / 2 + 0.5).repeat(rows, 1).to(dtype)
        x[:, 1::4] *= -1

    def wanted(levels: int = 127, rounding: Any = np.rint) -> Wanted:
        wide = x.float().numpy()
        scale = np.abs(wide).max(-1, keepdims=True) / np.float32(levels)
        # A subnormal scale is coarse: quotients may exceed 127.
        codes = rounding(wide / np.where(scale == 0, 1, scale)).clip(-127, 127).astype(np.int8)
        return {
            "codes": Expected(torch.from_numpy(codes)),
            "scale": Expected(torch.from_numpy(scale)),
        }

    wrong = {
        "rounds half away from zero": lambda: wanted(
            rounding=lambda v: np.sign(v) * np.floor(np.abs(v) + np.float32(0.5))
        ),
        "scale by 128": lambda: wanted(levels=128),
        "truncates": lambda: wanted(rounding=np.trunc),
    }
    return RowsProblem("dynamic_quant", {"x": x}, ("x",), wanted(), wrong)


def _linear_w8a8_dynamic(
    seed: int, *, rows: int, inputs: int, outputs: int, dtype: torch.dtype, bias: bool
) -> RowsProblem:
    x, weight = _activations(seed, rows, inputs, dtype), _weight(seed, inputs, outputs)
    gen = torch.Generator().manual_seed(seed + 2)
    scale = torch.rand(outputs, 1, generator=gen) * 0.01 + 1e-3
    offset = torch.randn(outputs, generator=gen) if bias else None
    codes, x_scale = formula.quantise(x.float().numpy())
    sums = codes @ weight.numpy().astype(np.int64).T

    def wanted(use_bias: bool = True, use_scale: bool = True) -> Wanted:
        def result(dtype: Any) -> Tensor:
            y = sums.astype(dtype) * (scale.numpy().astype(dtype).T if use_scale else 1) * x_scale
            if offset is not None and use_bias:
                y = y + offset.numpy().astype(dtype)
            return torch.from_numpy(y)

        oracle, low = map(result, formula.PRECISIONS)
        return {"y": Expected(oracle, low.to(dtype))}

    arguments = {"x": x, "weight": weight, "weight_scale": scale, "bias": offset}
    wrong = {
        "bias forgotten": lambda: wanted(use_bias=False),
        "weight scale forgotten": lambda: wanted(use_scale=False),
    }
    return RowsProblem("linear_w8a8_dynamic", arguments, ("x",), wanted(), wrong)


def _linear_w8a8_static(
    seed: int, *, rows: int, inputs: int, outputs: int, dtype: torch.dtype
) -> RowsProblem:
    x, weight = _activations(seed, rows, inputs, dtype), _weight(seed, inputs, outputs)
    gen = torch.Generator().manual_seed(seed + 2)
    # A power of two divides exactly in every arithmetic; the outlier channel saturates.
    scale, offset = torch.tensor([2.0**-5]), torch.tensor([5.0])
    weight_scale = torch.rand(outputs, generator=gen) * 0.01 + 1e-3
    sums = weight.long().sum(1)
    bias = (torch.randint(-1000, 1000, (outputs,), generator=gen) - 5 * sums).int()
    deq = scale * weight_scale

    def wanted(use_offset: bool = True, use_bias: bool = True) -> Wanted:
        shift = offset.numpy() if use_offset else np.zeros(1)
        codes = np.rint(x.double().numpy() / scale.numpy() + shift).clip(-128, 127)
        total = codes.astype(np.int64) @ weight.numpy().astype(np.int64).T
        total += bias.numpy() if use_bias else 0
        oracle, low = (
            torch.from_numpy(total.astype(d) * deq.numpy().astype(d)) for d in formula.PRECISIONS
        )
        return {"y": Expected(oracle, low.to(dtype))}

    arguments = {
        "x": x,
        "weight": weight,
        "input_scale": scale,
        "input_offset": offset,
        "quant_bias": bias,
        "deq_scale": deq,
    }
    wrong = {
        "activation offset forgotten": lambda: wanted(use_offset=False),
        "quant_bias forgotten": lambda: wanted(use_bias=False),
    }
    return RowsProblem("linear_w8a8_static", arguments, ("x",), wanted(), wrong)
