"""A quantised checkpoint of a few kilobytes with every scheme, written without torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glm5_ascend.checkpoint import TensorSpec
from tests.core import micro

SHAPE: dict[str, Any] = {"hidden_size": 16, "moe_intermediate_size": 16}
_BYTES = {"BF16": 2, "F32": 4, "I8": 1, "I32": 4}
_STATIC = ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj", "wq_b")
_DYNAMIC = ("gate_proj", "up_proj", "down_proj")


@dataclass
class Quantised:
    """Tensors, description and changes of the configuration; change them, then write."""

    stored: micro.Stored = field(default_factory=dict)
    description: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=lambda: dict(SHAPE))

    def put(self, name: str, shape: tuple[int, ...], dtype: str, scheme: str | None) -> None:
        """Add or replace one tensor of zeros."""
        data = bytes(math.prod(shape) * _BYTES[dtype])
        self.stored[name] = (TensorSpec(shape, dtype), data)
        if scheme is not None:
            self.description[name] = scheme

    def drop(self, name: str) -> None:
        """Take a tensor out of files and description."""
        del self.stored[name]
        del self.description[name]

    def write(self, directory: Path) -> Path:
        """Write the checkpoint and return its directory."""
        micro.write(directory, self.stored, **self.config)
        text = json.dumps(self.description)
        (directory / "quant_model_description.json").write_text(text)
        return directory


def quantised() -> Quantised:
    """Static attention in layers 0 to 2, int4 experts in 1 and 2, int8 elsewhere, and rotated."""
    made = Quantised()
    for name, (spec, _) in micro.tensors(micro.config(**SHAPE)).items():
        _add(made, name, spec)
    vocabulary = made.stored["lm_head.weight"][0].shape
    made.put("model.layers.3.embed_tokens.weight", vocabulary, "BF16", "FLOAT")
    made.put("model.layers.3.shared_head.head.weight", vocabulary, "BF16", "FLOAT")
    made.put("rot.weight", (16, 16), "BF16", None)
    made.description |= {"version": "1.0.0", "group_size": 0, "is_rot_used": True}
    made.description |= {"model_quant_type": "W4A8_DYNAMIC", "metadata": {}, "optional": {}}
    return made


def _add(made: Quantised, name: str, spec: TensorSpec) -> None:
    is_mtp = name.startswith("model.layers.3.")
    module = name.removesuffix(".weight")
    kind = module.rpartition(".")[2]
    if kind in _STATIC and not is_mtp:
        rows, columns = spec.shape
        made.put(name, (rows, columns), "I8", "W8A8")
        made.put(f"{module}.input_scale", (1,), "BF16", "W8A8")
        made.put(f"{module}.input_offset", (1,), "I8", "W8A8")
        made.put(f"{module}.quant_bias", (rows,), "I32", "W8A8")
        made.put(f"{module}.deq_scale", (rows,), "F32", "W8A8")
    elif ".experts." in name and not is_mtp:
        rows, columns = spec.shape
        bias = 16 if kind == "down_proj" else 1
        made.put(name, (rows // 2, columns), "I8", "W4A8_DYNAMIC")
        made.put(f"{module}.weight_scale", (rows, 1), "F32", "W4A8_DYNAMIC")
        made.put(f"{module}.weight_offset", (rows, 1), "F32", "W4A8_DYNAMIC")
        made.put(f"{module}.scale_bias", (rows, bias), "F32", "W4A8_DYNAMIC")
    elif kind in _STATIC or kind in _DYNAMIC:
        made.put(name, spec.shape, "I8", "W8A8_DYNAMIC")
        made.put(f"{module}.weight_scale", (spec.shape[0], 1), "BF16", "W8A8_DYNAMIC")
    else:
        made.put(name, spec.shape, spec.dtype, "FLOAT")
