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
        options = {"rows": 62, "shape": [4, 64], "by_position": True}
        yield _case("62x4x64-positions", dtype, _rotary_interleaved, **options)
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
    seed: int,
    *,
    rows: int,
    shape: list[int],
    dtype: torch.dtype,
    strided: bool = False,
    by_position: bool = False,
) -> RowsProblem:
    x = _normal(seed, rows, *shape).to(dtype)
    # Angles of far positions depend on the last bit of F32 theta^-j: hand the table over.
    position = torch.arange(rows) * (1 if by_position else 997)
    step = torch.arange(0, shape[-1], 2) / shape[-1]
    angle = position.double()[:, None] * THETA ** -step.double()
    cos, sin = angle.cos().float(), angle.sin().float()
    exact, rough = torch.complex(cos, sin), torch.complex(cos, sin)
    if by_position:
        narrow = position.float()[:, None] * THETA**-step
        exact = torch.complex(angle.cos(), angle.sin())
        rough = torch.complex(narrow.cos(), narrow.sin())
    tables = [t.view(rows, *[1] * (len(shape) - 1), -1).numpy() for t in (exact, rough)]

    def wanted(half_split: bool = False, backwards: bool = False) -> Wanted:
        oracle, low = (
            torch.from_numpy(
                formula.turn(
                    x.double().numpy().astype(d),
                    (table.conj() if backwards else table).astype(c),
                    half_split=half_split,
                )
            )
            for d, c, table in zip(
                formula.PRECISIONS, (np.complex128, np.complex64), tables, strict=True
            )
        )
        return {"y": Expected(oracle, low.to(dtype))}

    wrong = {
        "wrong rope style": lambda: wanted(half_split=True),
        "rotated backwards": lambda: wanted(backwards=True),
    }
    arguments: dict[str, Any] = {"x": columns(x) if strided else x}
    if by_position:
        arguments |= {"positions": position, "theta": THETA}
        return RowsProblem("rotary_interleaved", arguments, ("x", "positions"), wanted(), wrong)
    arguments |= {"cos": cos, "sin": sin}
    return RowsProblem("rotary_interleaved", arguments, ("x", "cos", "sin"), wanted(), wrong)
