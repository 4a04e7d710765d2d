"""Schema, checks, kernel and fake kernel of the rotation with int8 quantisation."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops import checks, dispatch
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.registry import define
from glm5_ascend.ops.tracing import passes_errors

WIDTH = 128
SCHEMA = 'hadamard_quant(Tensor x, *, str backend="auto") -> (Tensor, Tensor)'


def _check(x: Tensor) -> None:
    checks.dtype("x", x, checks.FLOATS)
    if x.ndim < 2 or x.shape[-1] != WIDTH:
        raise ArgumentError(f"x must be [.., {WIDTH}] with two or more axes, not {list(x.shape)}")
    checks.dense("x", x)


def _kernel(x: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    _check(x)
    codes, scale = dispatch.load("hadamard_quant", backend, x).forward(x.flatten(0, -2))
    return codes.view(x.shape), scale.view(x.shape[:-1])


def _fake(x: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    _check(x)
    scale = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty(x.shape[:-1], dtype=scale)


OPERATOR = define(SCHEMA, _kernel, passes_errors(_fake))
