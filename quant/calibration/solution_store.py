"""Solved layers on disk: a file of finished tensors per layer, and what the writer asks of them."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from glm5_ascend.checkpoint import TensorSpec, write_shard
from glm5_ascend.checkpoint_header import StoredTensor, read_header
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.convert import as_bytes
from glm5_ascend.quant.folding import layer_of
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.scheme import Scheme, stored_tensors
from glm5_ascend.quant.solutions import SmoothScales, StaticRange

_KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "I8": torch.int8,
}
_ROWS, _COLUMNS = ".smooth_rows", ".smooth_columns"


def solution_file(directory: Path, layer: int) -> Path:
    """Where the finished tensors of a layer are."""
    return directory / f"solution-{layer:04d}.safetensors"


def scales_file(directory: Path, layer: int) -> Path:
    """Where the smoothing scales of a layer are."""
    return directory / f"scales-{layer:04d}.safetensors"


def write_solution(
    directory: Path,
    layer: int,
    steps: Iterable[Step],
    solved: Iterator[tuple[Step, dict[str, Tensor]]],
) -> None:
    """Write the solution of one layer while it is being solved, tensor by tensor.

    Args:
        directory: of the solutions.
        layer: index.
        steps: what will be solved, in order.
        solved: the steps in that order, each with the tensors of :func:`_solution`.
    """
    specs = {name: spec for step in steps for name, spec in _solution(step).items()}

    def data() -> Iterator[tuple[str, memoryview]]:
        for step, tensors in solved:
            for name, spec in _solution(step).items():
                yield name, as_bytes(tensors[name], spec)

    write_shard(solution_file(directory, layer), specs, data(), {})


def _solution(step: Step) -> dict[str, TensorSpec]:
    """What a solution holds of a quantised step: vllm-ascend's tensors, whatever the output is."""
    shape = (step.shape[0], step.shape[1])
    return stored_tensors(step.name, shape, step.scheme, step.float_dtype)


def write_scales(directory: Path, layer: int, scales: dict[str, SmoothScales]) -> None:
    """Write the smoothing scales of one layer, F64, by the name of their step."""
    tensors: dict[str, Tensor] = {}
    for name, scale in scales.items():
        for suffix, values in ((_ROWS, scale.rows), (_COLUMNS, scale.columns)):
            if values is not None:
                tensors[name + suffix] = values.double()
    specs = {name: TensorSpec(tuple(values.shape), "F64") for name, values in tensors.items()}

    def data() -> Iterator[tuple[str, memoryview]]:
        for name, values in tensors.items():
            yield name, values.contiguous().numpy().data

    write_shard(scales_file(directory, layer), specs, data(), {})


@dataclass(slots=True)
class SolutionStore:
    """The solutions of a work directory; pickles as its path and the layers that are solved.

    Attributes:
        directory: where the files are.
        layers: which layers were solved.
    """

    directory: Path
    layers: frozenset[int]
    _open: dict[Path, tuple[dict[str, StoredTensor], mmap.mmap]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __reduce__(self) -> tuple[type[SolutionStore], tuple[Path, frozenset[int]]]:
        return SolutionStore, (self.directory, self.layers)

    def tensors(self, step: Step) -> dict[str, Tensor] | None:
        """The finished tensors of a quantised step of a solved layer.

        Raises:
            CheckpointError: the layer's file is gone or damaged.
        """
        layer = layer_of(step.name)
        if layer is None or layer not in self.layers or step.scheme is Scheme.FLOAT:
            return None
        path = solution_file(self.directory, layer)
        return {name: self._read(path, name) for name in _solution(step)}

    def scales(self, step: Step) -> SmoothScales | None:
        """Smoothing of a step that stays float; finished tensors have it in them."""
        layer = layer_of(step.name)
        if layer is None or layer not in self.layers:
            return None
        path = scales_file(self.directory, layer)
        header, _ = self._file(path)
        found = [
            self._read(path, name) if (name := step.name + suffix) in header else None
            for suffix in (_ROWS, _COLUMNS)
        ]
        return None if found == [None, None] else SmoothScales(*found)

    def static_range(self, step: Step) -> StaticRange | None:
        """None: static steps are among the finished tensors."""
        return None

    def release(self, layer: int) -> None:
        """Remove a layer's finished tensors; nothing needs them any more."""
        path = solution_file(self.directory, layer)
        self._open.pop(path, None)
        path.unlink(missing_ok=True)

    def _read(self, path: Path, name: str) -> Tensor:
        header, data = self._file(path)
        if name not in header:
            raise CheckpointError(f"{path} lacks tensor {name}", "start anew with --overwrite")
        found = header[name]
        view = memoryview(data)[found.offset : found.offset + found.nbytes]
        return torch.frombuffer(view, dtype=_KINDS[found.spec.dtype]).reshape(found.spec.shape)

    def _file(self, path: Path) -> tuple[dict[str, StoredTensor], mmap.mmap]:
        if path not in self._open:
            if not path.is_file():
                raise CheckpointError(
                    f"{path} is gone, and with it the solution of a layer",
                    "start anew with --overwrite",
                )
            header, _ = read_header(path)
            with open(path, "rb") as stream:
                data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            self._open[path] = header, data
        return self._open[path]
