"""Conformance of the Hadamard rotation with int8 quantisation: the same bits everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from glm5_ascend.ops.verify import formula
from glm5_ascend.ops.verify.case import DTYPES
from glm5_ascend.ops.verify.rows import Expected, RowsCase, RowsProblem, Wanted, columns

GROUP = "hadamard_quant"
WIDTH = 128


def cases() -> Iterator[RowsCase]:
    """Index keys and queries of GLM-5 and DeepSeek-V3.2, outliers, zeros, values that are none."""
    for dtype in DTYPES:
        for shape in ((1, 32), (62, 1), (9, 64)):
            label = "x".join(map(str, shape))
            yield _case(f"{label}-{DTYPES[dtype]}", "quick", shape=shape, dtype=dtype)
        yield _case(f"62x1-strided-{DTYPES[dtype]}", shape=(62, 1), dtype=dtype, strided=True)
    yield _case("9x4-not_finite", shape=(9, 4), dtype=torch.float32, special=True)
    yield _case("9x4-tiny", shape=(9, 4), dtype=torch.float32, std=1e-43)


def _case(label: str, size: str = "normal", **options: Any) -> RowsCase:
    return RowsCase(group=GROUP, label=label, make=partial(_problem, **options), size=size)


def _problem(
    seed: int,
    *,
    shape: tuple[int, int],
    dtype: torch.dtype,
    strided: bool = False,
    special: bool = False,
    std: float = 1.0,
) -> RowsProblem:
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, WIDTH, generator=gen)
    x[..., 5] *= 20
    x[1:][-1:] = 0
    if special:
        x[0, 0, 7], x[1, 0, 9] = torch.nan, torch.inf
    x = (std * x).to(dtype)

    def wanted(rotate: Any = fast_transform) -> Wanted:
        with np.errstate(invalid="ignore"):
            y = rotate(x.float().numpy())
            scale = np.abs(y).max(-1) / np.float32(127)
            # A subnormal scale is coarse: quotients may exceed 127.
            codes = np.rint(y / np.where(scale == 0, 1, scale)[..., None]).clip(-127, 127)
        codes = np.where(np.isfinite(scale)[..., None], codes, 0).astype(np.int8)
        scales = torch.from_numpy(scale)
        return {
            "codes": Expected(torch.from_numpy(codes)),
            # A NaN's bits are nobody's business.
            "scale": Expected(scales.double(), scales) if special else Expected(scales),
        }

    wrong = {
        "not rotated": lambda: wanted(lambda v: v),
        "rotation not normalised": lambda: wanted(lambda v: v @ formula.hadamard(WIDTH) * 128**0.5),
    }
    arguments = {"x": columns(x) if strided else x}
    return RowsProblem("hadamard_quant", arguments, ("x",), wanted(), wrong)


def fast_transform(x: formula.Array) -> formula.Array:
    """x [.., d] times Sylvester's matrix / sqrt(d), added at distances 1, 2, 4 .. as contracted."""
    width = x.shape[-1]
    at = np.arange(width)
    distance = 1
    while distance < width:
        low = (at & distance) == 0
        first, second = x[..., at & ~distance], x[..., at | distance]
        x = np.where(low, first + second, first - second)
        distance *= 2
    normal: formula.Array = x * x.dtype.type(width**-0.5)
    return normal
