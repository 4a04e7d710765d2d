"""The plan: which tensors go into which file, decided before any work and by nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from glm5_ascend.checkpoint import DTYPE_BYTES, TensorSpec, tensor_bytes
from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError
from glm5_ascend.quant.recipe import Recipe, Step, recycled_step, steps

ROT_FILE = "rot.safetensors"
# Files of at most 4 GiB; small checkpoints are still cut, so that they resume and use workers.
_LARGEST_SHARD = 4 << 30
_SMALLEST_SHARD = 1 << 20
_PIECES = 12


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file: its name and the steps that fill it, in order."""

    file: str
    steps: tuple[Step, ...]

    def tensors(self) -> dict[str, TensorSpec]:
        """Names, shapes and dtypes in file order."""
        return {name: spec for step in self.steps for name, spec in step.stored.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data."""
        return sum(tensor_bytes(spec) for spec in self.tensors().values())


@dataclass(frozen=True, slots=True)
class Plan:
    """Every file of weights of one output, a function of configuration and recipe alone."""

    recipe: Recipe
    shards: tuple[Shard, ...]

    @property
    def is_ascend(self) -> bool:
        """Whether the output carries a description for the engine's ``ascend`` quantisation.

        A plain unrotated output does not. A rotated one does even if all of it is float: only
        that path multiplies the MTP layer's input state with ``rot.weight``.
        """
        quantised = not self.recipe.is_float or self.recipe.rotate
        return quantised and self.recipe.format == "ascend"

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data of all files."""
        return sum(shard.nbytes for shard in self.shards)

    def weight_map(self) -> dict[str, str]:
        """Tensor name to file name."""
        return {name: shard.file for shard in self.shards for name in shard.tensors()}

    def digest(self) -> str:
        """SHA-256 over recipe, file names, tensors and how each is made."""
        state = hashlib.sha256(json.dumps(self.recipe.as_dict(), sort_keys=True).encode())
        for shard in self.shards:
            for step in shard.steps:
                stored = [(n, s.shape, s.dtype) for n, s in step.stored.items()]
                made = (step.action, step.scheme, step.rounding, repr(step.fold))
                row = (shard.file, step.source, *made, stored)
                state.update(json.dumps(row).encode())
        return state.hexdigest()


def make_plan(config: Glm5Config, recipe: Recipe, shard_bytes: int | None = None) -> Plan:
    """Cut the steps of a model into files.

    Args:
        config: the source model.
        recipe: what the user wants.
        shard_bytes: limit of one file's tensor data; a single step may exceed it.

    Raises:
        ConfigError: a rule or a dimension that does not fit the model.
    """
    everything = list(steps(config, recipe))
    if shard_bytes is None:
        total = sum(_step_bytes(step) for step in everything)
        shard_bytes = min(_LARGEST_SHARD, max(_SMALLEST_SHARD, total // _PIECES))
    groups = _cut(everything, shard_bytes)
    stem = "model" if recipe.is_float or recipe.format != "ascend" else "quant_model_weights"
    shards = [
        Shard(f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors", tuple(group))
        for number, group in enumerate(groups, start=1)
    ]
    if recipe.rotate and recipe.format == "ascend":
        shards.append(Shard(ROT_FILE, (recycled_step(config, recipe),)))
    for shard in shards:
        _require_alignment(shard)
    return Plan(recipe, tuple(shards))


def _cut(everything: Iterable[Step], limit: int) -> list[list[Step]]:
    groups: list[list[Step]] = [[]]
    filled = 0
    for step in everything:
        size = _step_bytes(step)
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(step)
        filled += size
    return groups


def _step_bytes(step: Step) -> int:
    return sum(tensor_bytes(spec) for spec in step.stored.values())


def _require_alignment(shard: Shard) -> None:
    """Readers take typed views of a mapped file; odd dimensions could misalign them."""
    offset = 0
    for name, spec in shard.tensors().items():
        if offset % DTYPE_BYTES[spec.dtype]:
            raise ConfigError(
                f"{name} would start at byte {offset} of {shard.file}, not aligned for"
                f" {spec.dtype}",
                "use --scheme none --dtype float32",
            )
        offset += tensor_bytes(spec)
