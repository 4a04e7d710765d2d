"""The weights of one decoder layer, read when they are written: one matrix in memory at a time.

Float tensors become F32; codes, scales and offsets of a quantised checkpoint stay what they are,
apart from BF16, which becomes F32 too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glm5_ascend.ascend_inventory import check_ascend_inventory
from glm5_ascend.ascend_schemes import FLOAT
from glm5_ascend.checkpoint import CheckpointReader, TensorSpec, expected_tensors, tensor_bytes
from glm5_ascend.config import Glm5Config
from glm5_ascend.description_file import DescriptionFile
from glm5_ascend.errors import CheckpointError
from glm5_ascend.files import DESCRIPTION_FILE, present

Array = NDArray[np.generic]
_DTYPES = {"F32": np.float32, "I8": np.int8, "I32": np.int32, "BF16": np.uint16}


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive bytes of a weight, little-endian, made by ``load``."""

    name: str
    spec: TensorSpec
    load: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class Weight:
    """One constant of a graph: ``parts`` follow each other in memory."""

    name: str
    spec: TensorSpec
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return tensor_bytes(self.spec)

    def chunks(self) -> Iterator[tuple[str, memoryview]]:
        """Name and bytes of each part, read now."""
        for part in self.parts:
            yield part.name, np.ascontiguousarray(part.load()).data.cast("B")


class LayerWeights:
    """Tensors of layer ``layer`` by their names within it (``self_attn.q_a_proj.weight``).

    Args:
        reader: an open checkpoint.
        layer: its index; MTP layers follow the decoder layers.

    Raises:
        CheckpointError: the checkpoint is not complete, or its weights are block FP8.
    """

    def __init__(self, reader: CheckpointReader, layer: int) -> None:
        self.config: Glm5Config = reader.config
        self._reader = reader
        self._prefix = f"model.layers.{layer}."
        self._schemes = _schemes(reader)

    def scheme(self, module: str) -> str:
        """Scheme of ``<module>.weight``; FLOAT in a plain checkpoint."""
        return self._schemes.get(f"{self._prefix}{module}.weight", FLOAT)

    def tensor(self, name: str) -> Weight:
        """One tensor as it is, BF16 widened to F32."""
        part = self._part(name)
        return Weight(name, part.spec, (part,))

    def rows(self, name: str, new_name: str, per_head: slice) -> Weight:
        """The rows ``per_head`` of every attention head of a matrix [heads · n, k], as [heads,
        rows, k]."""
        whole = self._part(name)
        heads = self.config.num_attention_heads
        columns = whole.spec.shape[1]

        def load() -> Array:
            return whole.load().reshape(heads, -1, columns)[:, per_head]

        count = len(range(*per_head.indices(whole.spec.shape[0] // heads)))
        spec = TensorSpec((heads, count, columns), whole.spec.dtype)
        return Weight(new_name, spec, (Part(new_name, spec, load),))

    def experts(self, projections: Iterable[str], leaf: str, new_name: str) -> Weight:
        """Tensors of all experts stacked to [experts, rows of all projections, ..]."""
        names = list(projections)
        parts = tuple(
            self._part(f"mlp.experts.{e}.{projection}_proj.{leaf}")
            for e in range(self.config.n_routed_experts)
            for projection in names
        )
        first = parts[0].spec
        rows = sum(part.spec.shape[0] for part in parts[: len(names)])
        shape = (self.config.n_routed_experts, rows, *first.shape[1:])
        return Weight(new_name, TensorSpec(shape, first.dtype), parts)

    def _part(self, name: str) -> Part:
        full = self._prefix + name
        spec = self._reader.spec(full)
        widened = TensorSpec(spec.shape, "F32" if spec.dtype == "BF16" else spec.dtype)

        def load() -> Array:
            self._reader.check_finite(full)
            stored = np.frombuffer(self._reader.raw(full), dtype=_DTYPES[spec.dtype])
            if spec.dtype == "BF16":
                stored = (stored.astype(np.uint32) << 16).view(np.float32)
            return stored.reshape(spec.shape)

        return Part(name, widened, load)


def _schemes(reader: CheckpointReader) -> dict[str, str]:
    """Scheme of every quantised weight; checks names, shapes and dtypes of the whole checkpoint."""
    file = Path(reader.directory) / DESCRIPTION_FILE
    if present(file):
        return check_ascend_inventory(reader, DescriptionFile.read(file))
    if reader.config.fp8 is not None:
        raise CheckpointError(
            f"{reader.directory} holds block FP8 weights, which have no ONNX form here",
            "convert it first with `glm5-ascend quantize --scheme none`, or to w8a8 or w4a8",
        )
    reader.check_inventory(expected_tensors(reader.config))
    return {}
