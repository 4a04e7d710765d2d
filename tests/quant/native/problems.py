"""Calls of the fused kernels, and what float64 says about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, sqrt
from pathlib import Path

import numpy as np
import torch

from glm5_ascend import quant
from glm5_ascend.quant.folding import Axis
from glm5_ascend.quant.native import KernelAxis, Source, kernel_axis
from glm5_ascend.quant.packing import unpack_rows
from glm5_ascend.quant.rotation import Orthogonal, hadamard, on_columns, on_rows, shifted_blocks
from tests.ops.native.calls import Argument, Array, Call, Out
from tests.support.fp8 import quantise_blocks

HOME = Path(quant.__path__[0])
ENTRY = "g5_fold"
NOT_FINITE = 3

MATRICES = {
    "R1": hadamard("R1", 192, 1),
    "R2": shifted_blocks("R2", 64, 2),
    "R3": hadamard("R3", 128, 3),
    "R4": hadamard("R4", 16, 4),
    "twenty": hadamard("twenty", 80, 5),
    "small": hadamard("small", 24, 6),
    "full": hadamard("full", 6144, 7),
}
_TYPES = {"f32": 0, "bf16": 1, "fp8": 5}
_KINDS = {32: 0, 16: 1, 8: 2, 4: 3}


def axis(*segments: tuple[str | None, int], repeat: int = 1) -> Axis:
    return Axis(segments, repeat)


R1 = axis(("R1", 192))


@dataclass(frozen=True)
class Problem:
    """One call: ``bits`` 32 and 16 are floats."""

    label: str
    rows: int
    columns: int
    bits: int
    dtype: str = "bf16"
    on_columns: Axis | None = None
    on_rows: Axis | None = None
    gamma: bool = False
    after: bool = False
    search: bool = True
    slices: int = 1


PROBLEMS = (
    Problem("plain-odd", 7, 33, 32, dtype="f32"),
    Problem("plain-bf16-out", 6, 50, 16, gamma=True),
    Problem("expert-up", 16, 192, 4, on_columns=R1, gamma=True),
    Problem("expert-down", 192, 80, 4, on_rows=R1, slices=16),
    Problem("expert-down-f32", 192, 36, 8, dtype="f32", on_rows=R1),
    Problem("fp8-up", 136, 192, 4, dtype="fp8", on_columns=R1, gamma=True),
    Problem("fp8-down", 192, 144, 8, dtype="fp8", on_rows=R1),
    Problem("q-a", 64, 192, 8, on_columns=R1, on_rows=axis(("R2", 64)), gamma=True),
    Problem("kv-a", 144, 192, 8, on_columns=R1, on_rows=axis(("R3", 128), (None, 16))),
    Problem("q-b", 22, 64, 8, on_columns=axis(("R2", 64)), gamma=True),
    Problem(
        "kv-b",
        3 * 40,
        128,
        16,
        on_columns=axis(("R3", 128)),
        on_rows=axis((None, 24), ("R4", 16), repeat=3),
    ),
    Problem("o", 192, 64, 8, on_columns=axis(("R4", 16), repeat=4), on_rows=R1),
    Problem("twenty", 80, 80, 32, on_columns=axis(("twenty", 80)), on_rows=axis(("twenty", 80))),
    Problem("small", 24, 48, 32, on_columns=axis(("small", 24), repeat=2)),
    Problem("full-row", 4, 6144, 4, on_columns=axis(("full", 6144)), gamma=True),
    Problem("smoothed", 16, 192, 4, on_columns=R1, gamma=True, after=True),
    Problem("nearest-4", 8, 100, 4, search=False),
    Problem("nearest-8", 8, 100, 8, search=False),
)


@dataclass(frozen=True)
class Built:
    """A problem with its data; ``exact`` is the folded weight in float64."""

    problem: Problem
    source: Source
    columns: KernelAxis
    rows: KernelAxis
    exact: torch.Tensor
    bound: torch.Tensor

    def call(self) -> Call:
        """The kernel's arguments."""
        p, s = self.problem, self.source
        values = s.values.view(torch.uint8).numpy()
        scales = None if s.scales is None else s.scales.numpy()
        return Call(
            ENTRY,
            (
                *(_TYPES[p.dtype], values, p.rows, p.columns, scales, *s.block),
                *_arguments(self.columns),
                *_arguments(self.rows),
                *(_KINDS[p.bits], int(p.search), *self._outputs(), p.slices),
            ),
        )

    def _outputs(self) -> Sequence[Argument]:
        p = self.problem
        shape = (p.rows // 2 if p.bits == 4 else p.rows, p.columns)
        out = Out({32: np.float32, 16: np.uint16}.get(p.bits, np.int8), shape)
        if p.bits > 8:
            return out, None, None
        bias = Out(np.float32, (p.rows, p.slices)) if p.bits == 4 else None
        return out, Out(np.float32, (p.rows, 1)), bias

    def dequantised(self, found: Sequence[Array]) -> torch.Tensor:
        """The kernel's results as float64 [rows, columns]."""
        bits = self.problem.bits
        first = torch.from_numpy(found[0])
        if bits == 32:
            return first.double()
        if bits == 16:
            return first.view(torch.bfloat16).double()
        codes = unpack_rows(first) if bits == 4 else first
        return codes.double() * torch.from_numpy(found[1]).double()


def build(p: Problem, seed: int = 1) -> Built:
    """Random weights of 0.02 with a few zeros, γ between a half and one and a half."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(p.rows, p.columns, generator=draw) * 0.02
    weight[:, ::17] = 0
    source = _source(weight, p.dtype)
    exact = source.values.double()
    if source.scales is not None:
        high, wide = source.block
        by_row = source.scales.double().repeat_interleave(high, 0)[: p.rows]
        exact = exact * by_row.repeat_interleave(wide, 1)[:, : p.columns]
    gamma = torch.rand(p.columns, generator=draw, dtype=torch.float64) + 0.5 if p.gamma else None
    after = [
        torch.rand(n, generator=draw, dtype=torch.float64) + 0.5 if p.after else None
        for n in (p.rows, p.columns)
    ]
    folded = exact if gamma is None else exact * gamma
    bound = folded.abs()
    for name, wanted, turn in (
        ("columns", p.on_columns, on_columns),
        ("rows", p.on_rows, on_rows),
    ):
        if wanted is not None:
            folded = turn(folded, wanted, MATRICES)
            size = _magnitudes(wanted)
            bound = bound @ size if name == "columns" else size.T @ bound
    for values, shape in zip(after, ((-1, 1), (1, -1)), strict=True):
        if values is not None:
            folded, bound = folded * values.reshape(shape), bound * values.reshape(shape)
    return Built(
        p,
        source,
        kernel_axis(p.on_columns, MATRICES, gamma, after[1]),
        kernel_axis(p.on_rows, MATRICES, after=after[0]),
        folded,
        bound * depth(p) * 2.0**-24,
    )


def depth(p: Problem) -> float:
    """Roundings on the way of a value: products, and the levels of additions.

    Each is at most 2^-24 of a partial result, and no partial result exceeds the sum of magnitudes.
    """
    products = 2 + 2 * p.gamma + 4 * p.after + (p.dtype == "fp8")
    return float(products + sum(_levels(a) for a in (p.on_columns, p.on_rows) if a is not None))


def _levels(wanted: Axis) -> float:
    deepest = 0.0
    for name, _ in wanted.segments:
        form = None if name is None else MATRICES[name].form
        if form is not None:
            sums = log2(form.block / form.order) + (form.order // 2 if form.order > 1 else 0)
            deepest = max(deepest, (2 if form.shift else 1) * (sums + 2))
    return deepest


def misfit(weight: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> float:
    """Median over rows of the relative distance of the scale from its codes' least-squares one."""
    fitted = (weight.double() * codes).sum(1) / codes.double().square().sum(1)
    return float((scale[:, 0].double() / fitted - 1).abs().median())


def is_bfloat16(scale: torch.Tensor) -> bool:
    """Whether more scales are exact in bfloat16 than chance explains, which is one in 2^16."""
    return float((scale.bfloat16().float() == scale).float().mean()) > 0.05


def _magnitudes(wanted: Axis) -> torch.Tensor:
    """|R| of an axis, float64 [size, size]."""
    parts = [
        torch.eye(width, dtype=torch.float64) if name is None else _magnitude(MATRICES[name])
        for name, width in wanted.segments * wanted.repeat
    ]
    return torch.block_diag(*parts)


def _magnitude(matrix: Orthogonal) -> torch.Tensor:
    if matrix.size <= 256:
        return matrix.dense().abs()
    return torch.full((matrix.size, matrix.size), 1 / sqrt(matrix.size), dtype=torch.float64)


def _source(weight: torch.Tensor, dtype: str) -> Source:
    if dtype == "fp8":
        codes, scales = quantise_blocks(weight)
        return Source(codes, scales, (128, 128))
    return Source(weight.bfloat16() if dtype == "bf16" else weight)


def _arguments(found: KernelAxis) -> Sequence[Argument]:
    vectors = (found.factors, found.again, found.after)
    return (
        found.segments if len(found.segments) else None,
        len(found.segments),
        *(None if vector is None else vector.numpy() for vector in vectors),
    )
