"""The source's modules as the writer folds, rotates and smooths them, read one by one in F32.

It offers what :mod:`glm5_ascend.simulator.offline_load` reads a layer from. A module that is
solved already is applied in its scheme, activation quantisation included; others stay float. What
is stored as float is rounded to the dtype of the output, so that a layer computes what the written
checkpoint will.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.quant.convert import read_matrix
from glm5_ascend.quant.packing import unpack_rows
from glm5_ascend.quant.recipe import Action, Step
from glm5_ascend.quant.rotation import Orthogonal, on_columns, on_rows, recycled_state
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.solutions import SmoothScales
from glm5_ascend.simulator.offline_layers import GatedMlp
from glm5_ascend.simulator.offline_linear import (
    DynamicLinear,
    FloatLinear,
    Linear,
    RoutedExperts,
    StaticLinear,
)

_STORED = {"BF16": torch.bfloat16, "F32": torch.float32}
# Elements read at once in float64 (128 MiB).
_PIECE = 1 << 24


class FoldedStore:
    """Modules of one source checkpoint in the basis of the output.

    Args:
        reader: the source.
        steps: every step of the plan, by name of its output tensor.
        matrices: rotations by name; empty without rotation.

    Attributes:
        scales: smoothing of steps, by name.
        solved: finished tensors by their stored names.
    """

    def __init__(
        self, reader: CheckpointReader, steps: Iterable[Step], matrices: Mapping[str, Orthogonal]
    ) -> None:
        self.config, self.dtype = reader.config, torch.float32
        self.scales: dict[str, SmoothScales] = {}
        self.solved: dict[str, Tensor] = {}
        self._reader, self._matrices = reader, matrices
        self.steps = {step.name: step for step in steps}

    @property
    def uses_rot(self) -> bool:
        """Whether the MTP layer multiplies its incoming states with ``rot.weight``."""
        return "rot.weight" in self.steps

    def has(self, name: str) -> bool:
        return name in self.steps

    def weight(self, name: str) -> Tensor:
        """F32 values of one tensor before rounding."""
        step = self.steps[name]
        if step.action is Action.ONES:
            values = torch.ones(step.shape)
        elif step.action is Action.RECYCLED:
            values = recycled_state(read_matrix(self._reader, step.source), self._matrices["R1"])
        elif step.action is Action.COPY:
            values = read_matrix(self._reader, step.source)
        else:
            values = self._matrix(step)
        return _smoothed(values, self.scales.get(name)).float()

    def float(self, name: str) -> Tensor:
        """F32 values of one tensor that stays float, as the output holds them."""
        return self.weight(name).to(_STORED[self.steps[name].float_dtype]).float()

    raw = float

    def linear(self, module: str) -> Linear:
        """A module in its scheme if it is solved, otherwise float and unrounded."""
        name = f"{module}.weight"
        if name in self.solved:
            return solved_linear(self.steps[name], self.solved)
        step = self.steps[name]
        is_float = step.scheme is Scheme.FLOAT
        return FloatLinear(self.float(name) if is_float else self.weight(name))

    def experts(self, prefix: str) -> RoutedExperts:
        """The routed experts below ``prefix`` (``…mlp.experts``), read one by one when applied."""
        return _StreamedExperts(self, prefix)

    def embed(self, name: str, tokens: Tensor) -> Tensor:
        """F32 [T, H]: the rows of a vocabulary matrix that ``tokens`` int64 [T] name."""
        step = self.steps[name]
        kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
        kind = kinds[self._reader.spec(step.source).dtype]
        table = torch.frombuffer(self._reader.raw(step.source), dtype=kind).view(step.shape)
        rows = table[tokens].float()
        if step.fold.columns is not None:
            rows = on_columns(rows, step.fold.columns, self._matrices)
        return rows.to(_STORED[step.float_dtype]).float()

    def _matrix(self, step: Step) -> Tensor:
        gamma = [read_matrix(self._reader, name).float() for name in step.fold.norms]
        result = torch.empty(step.shape)
        for rows in _pieces(step.shape):
            part = read_matrix(self._reader, step.source, rows).float()
            if gamma:
                part = part * torch.cat(gamma)
            if step.fold.columns is not None:
                part = on_columns(part, step.fold.columns, self._matrices)
            result[rows] = part
        if step.fold.rows is not None:
            result = on_rows(result, step.fold.rows, self._matrices)
        return result


class _StreamedExperts:
    def __init__(self, store: FoldedStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for expert in range(self._store.config.n_routed_experts):
            rows, slots = (ids == expert).nonzero(as_tuple=True)
            if len(rows):
                parts = (f"{self._prefix}.{expert}.{name}_proj" for name in ("gate", "up", "down"))
                out, _ = GatedMlp(*map(self._store.linear, parts))(x[rows], None)
                result.index_add_(0, rows, out * weights[rows, slots, None])
        return result


def solved_linear(step: Step, solved: Mapping[str, Tensor]) -> Linear:
    """A quantised module out of its stored tensors.

    An int4 module computes the same integers as the NPU, which splits them around an offset of 8.
    """
    module = step.name.removesuffix(".weight")
    codes = solved[step.name]
    if step.scheme is Scheme.W4A8_DYNAMIC:
        codes = unpack_rows(codes)
    if step.scheme is not Scheme.W8A8:
        return DynamicLinear(codes, solved[f"{module}.weight_scale"])
    parts = ("input_scale", "input_offset", "quant_bias", "deq_scale")
    return StaticLinear(codes, *(solved[f"{module}.{part}"] for part in parts))


def _smoothed(values: Tensor, smooth: SmoothScales | None) -> Tensor:
    if smooth is not None and smooth.columns is not None:
        values = values.double() * smooth.columns
    if smooth is not None and smooth.rows is not None:
        values = values.double() * smooth.rows.reshape(-1, *[1] * (values.dim() - 1))
    return values


def _pieces(shape: tuple[int, ...]) -> Iterator[slice]:
    step = max(1, _PIECE // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))
