"""Conformance of the norms and the rotary embedding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify import formula
from glm5_ascend.ops.verify.case import DTYPES
from glm5_ascend.ops.verify.rows import Expected, RowsCase, RowsProblem, Wanted, columns

GROUP = "norm_rope"
THETA = 8e6


def cases() -> Iterator[RowsCase]:
    """Widths of GLM-5, DeepSeek-V3.2 and the small model, odd ones, and the norms' special rows."""
    for dtype in DTYPES:
        for rows, width in ((1, 2048), (62, 512), (3, 6144), (213, 192), (2, 1521)):
            yield _case(f"{rows}x{width}", dtype, _rms_norm, rows=rows, width=width, eps=1e-5)
        for rows, width in ((62, 128), (1, 128), (3, 1521)):
            yield _case(f"{rows}x{width}", dtype, _layer_norm, rows=rows, width=width)
        for rows, *shape in ((62, 64, 64), (4, 1, 64), (213, 4, 64), (1, 128, 64)):
            label = "x".join(map(str, (rows, *shape)))
            yield _case(label, dtype, _rotary_interleaved, rows=rows, shape=shape)
        label = "9x{}-strided"
        yield _case(label.format(512), dtype, _rms_norm, rows=9, width=512, eps=1e-5, strided=True)
        yield _case(
            label.format("64x64"), dtype, _rotary_interleaved, rows=9, shape=[64, 64], strided=True
        )
    small = {"rows": 8, "std": 1e-3}
    label, dtype = "8x{}-small_values", torch.float32
    yield _case(label.format(512), dtype, _rms_norm, width=512, eps=1e-5, **small)
    yield _case(label.format(128), dtype, _layer_norm, width=128, **small)


def _case(size: str, dtype: torch.dtype, make: Any, **options: Any) -> RowsCase:
    return RowsCase(
        group=GROUP,
        label=f"{make.__name__.removeprefix('_')}-{size}-{DTYPES[dtype]}",
        make=partial(make, dtype=dtype, **options),
        size="quick" if dtype == torch.bfloat16 else "normal",
    )


def _normal(seed: int, *shape: int, std: float = 1.0) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return std * torch.randn(shape, generator=gen, dtype=torch.float64)


def _rms_norm(
    seed: int,
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    eps: float,
    std: float = 1.0,
    strided: bool = False,
) -> RowsProblem:
    x, weight = _normal(seed, rows, width, std=std).to(dtype), _normal(seed + 1, width).to(dtype)
    x[1:][-1:] = 0

    def wanted(eps: float = eps, normed: bool = True) -> Wanted:
        oracle, low = (
            formula.rms_norm(x.double().numpy().astype(d), np.ones(1, d), eps)
            for d in formula.PRECISIONS
        )
        if not normed:
            oracle, low = x.double().numpy(), x.float().numpy()
        # Two roundings, as in transformers: the normalised value, then the product.
        rounded = torch.from_numpy(low).to(dtype) * weight
        return {"y": Expected(torch.from_numpy(oracle) * weight.double(), rounded)}

    wrong = {
        "epsilon 1e-6 for 1e-5": lambda: wanted(eps=1e-6),
        "not normalised": lambda: wanted(normed=False),
    }
    arguments = {"x": columns(x) if strided else x, "weight": weight, "eps": eps}
    return RowsProblem("rms_norm", arguments, ("x",), wanted(), wrong)


def _layer_norm(
    seed: int, *, rows: int, width: int, dtype: torch.dtype, std: float = 1.0
) -> RowsProblem:
    x = _normal(seed, rows, width, std=std) + std / 2
    x = x.to(dtype)
    x[1:][-1:] = 1
    weight, bias = (_normal(seed + i, width).to(dtype) for i in (1, 2))

    def wanted(norm: Any = formula.layer_norm, eps: float = 1e-6) -> Wanted:
        oracle, low = (
            torch.from_numpy(
                norm(*(t.double().numpy().astype(d) for t in (x, weight, bias)), d(eps))
            )
            for d in formula.PRECISIONS
        )
        return {"y": Expected(oracle, low.to(dtype))}

    def as_rms_norm(x: Any, w: Any, b: Any, eps: Any) -> Any:
        return formula.rms_norm(x, w, eps) + b

    wrong = {
        "k_norm as RMSNorm": lambda: wanted(as_rms_norm),
        "k_norm as RMSNorm without bias": lambda: wanted(
            lambda x, w, b, eps: formula.rms_norm(x, w, eps)
        ),
        "bias dropped": lambda: wanted(lambda x, w, b, eps: formula.layer_norm(x, w, 0 * b, eps)),
        "epsilon 1e-5 for 1e-6": lambda: wanted(eps=1e-5),
    }
    arguments = {"x": x, "weight": weight, "bias": bias, "eps": 1e-6}
    return RowsProblem("layer_norm", arguments, ("x",), wanted(), wrong)


def _rotary_interleaved(
    seed: int, *, rows: int, shape: list[int], dtype: torch.dtype, strided: bool = False
) -> RowsProblem:
    x = _normal(seed, rows, *shape).to(dtype)
    # Angles of far positions depend on the last bit of F32 theta^-j: hand the table over.
    position = torch.arange(rows).double() * 997
    step = THETA ** (-torch.arange(0, shape[-1], 2).double() / shape[-1])
    cos, sin = (f(position[:, None] * step).float() for f in (torch.cos, torch.sin))

    table = torch.complex(cos, sin).view(rows, *[1] * (len(shape) - 1), -1).numpy()

    def wanted(by: formula.Array = table, half_split: bool = False) -> Wanted:
        oracle, low = (
            torch.from_numpy(
                formula.turn(x.double().numpy().astype(d), by.astype(c), half_split=half_split)
            )
            for d, c in ((np.float64, np.complex128), (np.float32, np.complex64))
        )
        return {"y": Expected(oracle, low.to(dtype))}

    wrong = {
        "wrong rope style": lambda: wanted(half_split=True),
        "rotated backwards": lambda: wanted(table.conj()),
    }
    arguments = {"x": columns(x) if strided else x, "cos": cos, "sin": sin}
    return RowsProblem("rotary_interleaved", arguments, ("x", "cos", "sin"), wanted(), wrong)
