"""Rotation of rows of 128 with int8 quantisation: inputs, F64, and the contestants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops import hadamard_quant
from glm5_ascend.ops.verify.compare import Figures
from tools.gpu_bench import draw
from tools.gpu_bench.costs import INDEX_DIM
from tools.gpu_bench.entry import Contestant, Ready, own
from tools.gpu_bench.shapes import Shape

# A code may differ from its exact value by half a step, and by what F32 sums of 128 numbers and a
# scale in F32 lose.
_STEPS = 0.5 + 1e-3


class Problem:
    """BF16 rows; the codes and scales of a contestant are judged against F64 rows."""

    def __init__(self, shape: Shape, device: str, seed: int, backend: str = "triton") -> None:
        self.shape, self.backend = shape, backend
        gen = draw.generator(device, seed)
        count = draw.input_sets(shape.cost.floor_us)
        self.sets = [draw.normal(gen, shape.tokens, INDEX_DIM) for _ in range(count)]

    @cached_property
    def matrix(self) -> Tensor:
        """F64 [128, 128] of Sylvester's construction, orthonormal."""
        one = torch.ones(1, 1, dtype=torch.float64, device=self.sets[0].device)
        while len(one) < INDEX_DIM:
            one = torch.cat([torch.cat([one, one], 1), torch.cat([one, -one], 1)])
        return one / INDEX_DIM**0.5

    def check(self, number: int, result: Any) -> Figures:
        """Whether every scale is max|y| / 127 and every code within half a step of y."""
        codes, scale = result
        y = self.sets[number].double() @ self.matrix
        expected = y.abs().amax(-1) / 127
        off = float(((scale.double().view(-1) - expected).abs() / expected).max())
        steps = float((codes.double() - y / expected[:, None]).abs().max())
        problem = "" if off <= 1e-5 else f"a scale is off by {off:.1e} of its value"
        if not steps <= _STEPS:
            problem = f"a code is {steps:.3f} steps off"
        return Figures(steps, _STEPS, problem=problem)

    def contestants(self) -> Iterator[Contestant]:
        """The project's, and a product with the matrix followed by torch's small kernels."""
        dtype = "int8"

        def make() -> tuple[list[Callable[[], Any]], Any]:
            calls = [lambda x=x: hadamard_quant(x, backend=self.backend) for x in self.sets]
            return calls, self.check

        yield from own(make, dtype, 0)
        yield Contestant("torch product and quantisation", "torch", dtype, 0, self._torch)

    def _torch(self) -> Ready:
        matrix = self.matrix.float()

        def run(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.float() @ matrix
            scale = y.abs().amax(-1) / 127
            return (y / scale[:, None]).round().to(torch.int8), scale

        return Ready([lambda x=x: run(x) for x in self.sets], self.check, torch.__version__)
