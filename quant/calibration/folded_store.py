"""The source's modules as the writer folds, rotates and smooths them, read one by one in F32.

It offers what :mod:`glm5_ascend.simulator.offline_load` reads a layer from. A module that is
solved already is applied in its scheme, activation quantisation included; others stay float. What
is stored as float is rounded to the dtype of the output, so that a layer computes what the written
checkpoint will.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.quant.backend import CPU, Backend
from glm5_ascend.quant.convert import data_free, unrounded
from glm5_ascend.quant.packing import unpack_rows
from glm5_ascend.quant.recipe import Action, Step
from glm5_ascend.quant.rotation import Orthogonal, on_columns
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.solutions import SmoothScales, StaticRange
from glm5_ascend.simulator.offline_layers import GatedMlp
from glm5_ascend.simulator.offline_linear import (
    DynamicLinear,
    FloatLinear,
    Linear,
    RoutedExperts,
    StaticLinear,
)

_STORED = {"BF16": torch.bfloat16, "F32": torch.float32}


class FoldedStore:
    """Modules of one source checkpoint in the basis of the output.

    Args:
        reader: the source.
        steps: every step of the plan, by name of its output tensor.
        matrices: rotations by name; empty without rotation.
        backend: arithmetic of folding and of data-free rounding.

    Attributes:
        scales: smoothing of steps, by name.
        solved: finished tensors by their stored names.
    """

    def __init__(
        self,
        reader: CheckpointReader,
        steps: Iterable[Step],
        matrices: Mapping[str, Orthogonal],
        backend: Backend = CPU,
    ) -> None:
        self.config, self.dtype = reader.config, torch.float32
        self.scales: dict[str, SmoothScales] = {}
        self.solved: dict[str, Tensor] = {}
        self._reader, self._matrices, self._backend = reader, matrices, backend
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
        scales = self.scales.get(name)
        if step.action is Action.MATRIX:
            return unrounded(self._reader, step, self._matrices, scales, self._backend)
        return self.data_free(step)[name].float()

    def data_free(self, step: Step, given: StaticRange | None = None) -> dict[str, Tensor]:
        """What the writer stores for a step without a finished solution; ``given`` is the range of
        a static one's input."""
        known = _Known(self.scales.get(step.name), given)
        return data_free(self._reader, step, self._matrices, known, self._backend)

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


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one step that is not solved."""

    smooth: SmoothScales | None
    given: StaticRange | None

    def tensors(self, step: Step) -> dict[str, Tensor] | None:
        return None

    def scales(self, step: Step) -> SmoothScales | None:
        return self.smooth

    def static_range(self, step: Step) -> StaticRange | None:
        return self.given


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
