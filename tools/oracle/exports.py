"""Exports in compressed-tensors format, as the quantiser writes them and changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

from glm5_ascend.demo import SMALL_MODEL
from glm5_ascend.quant.command import QuantizeOptions, run
from tests.support.tiny_model import write_tiny

# Marlin takes hidden sizes that are multiples of 128.
_SHAPE: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "head_dim": 16,
}
_SCALE = "model.layers.1.mlp.experts.0.gate_proj.weight_scale"


@dataclass(frozen=True)
class Case:
    """One trial.

    Attributes:
        source: "tiny", or "small", which is the trained model.
        scheme: preset.
        change: what is done to the folder.
        env: variables of the server.
    """

    source: str
    scheme: Literal["w8a8", "w4a8"]
    change: Callable[[Path], None] | None = None
    env: dict[str, str] = field(default_factory=dict)


def _edited(change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> Any:
    def edit(folder: Path) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(path)
            path.unlink()
        (folder / "model.safetensors.index.json").unlink()
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        change(tensors, config["quantization_config"]["config_groups"])
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    return edit


def _as_bytes(tensors: dict[str, torch.Tensor], groups: dict[str, Any]) -> None:
    """One code per byte and int8 activations: how this project wrote int4 at first."""
    groups["group_1"] |= {
        "input_activations": groups["group_0"]["input_activations"],
        "format": "int-quantized",
    }
    for name in [name for name in tensors if name.endswith(".weight_packed")]:
        module = name.removesuffix("_packed").removesuffix(".weight")
        words = tensors.pop(name)
        rows, columns = tensors.pop(f"{module}.weight_shape").tolist()
        codes = torch.stack([(words >> shift) & 15 for shift in range(0, 32, 4)], -1) - 8
        tensors[f"{module}.weight"] = codes.reshape(rows, columns).to(torch.int8)


def _without_scale(tensors: dict[str, torch.Tensor], groups: dict[str, Any]) -> None:
    del tensors[_SCALE]


def _without_group_size(tensors: dict[str, torch.Tensor], groups: dict[str, Any]) -> None:
    del groups["group_1"]["weights"]["group_size"]


CASES: dict[str, Case] = {
    "w8a8": Case("tiny", "w8a8"),
    "w4a8": Case("tiny", "w4a8"),
    "w4a8, Marlin with int8 inputs": Case("tiny", "w4a8", env={"VLLM_MARLIN_INPUT_DTYPE": "int8"}),
    "trained w8a8": Case("small", "w8a8"),
    "trained w4a8": Case("small", "w4a8"),
    "int4 one per byte, int8 activations": Case("tiny", "w4a8", _edited(_as_bytes)),
    "w4a8 without group_size": Case("tiny", "w4a8", _edited(_without_group_size)),
    "w8a8 without one weight_scale": Case("tiny", "w8a8", _edited(_without_scale)),
}


def write_export(scratch: Path, case: Case, name: str) -> Path:
    """Quantise for a case below ``scratch``; the folder is called ``name``."""
    source = SMALL_MODEL
    if case.source == "tiny":
        source = scratch / "tiny"
        if not source.is_dir():
            write_tiny(source, tokenizer=True, **_SHAPE)
    target = scratch / name
    run(QuantizeOptions(source, target, case.scheme, format="compressed-tensors"))
    if case.change is not None:
        case.change(target)
    return target
