"""Reading checkpoints for the oracles: plain safetensors, FP8 blocks, fused experts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.support.fp8 import dequantise_blocks

_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def read_config(directory: Path) -> dict[str, Any]:
    """Return ``config.json`` as a dictionary."""
    content: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return content


def read_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of every safetensors file in ``directory``; a duplicate is an error."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        part = load_file(file)
        if twice := tensors.keys() & part.keys():
            raise ValueError(f"{file} repeats {sorted(twice)[0]}")
        tensors |= part
    if not tensors:
        raise FileNotFoundError(f"no safetensors file in {directory}")
    return tensors


def dequantise_fp8(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors with every FP8 weight multiplied by its ``weight_scale_inv`` blocks."""
    plain: dict[str, torch.Tensor] = {}
    for name, values in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        if values.dtype == torch.float8_e4m3fn:
            values = dequantise_blocks(values, tensors[f"{name}_scale_inv"])
        plain[name] = values
    return plain


def fuse_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors with per-expert weights stacked to transformers' 3-D parameters."""
    fused: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    for name, values in tensors.items():
        if match := _EXPERT.fullmatch(name):
            experts.setdefault(match[1], {})[int(match[2]), match[3]] = values
        else:
            fused[name] = values
    for prefix, parts in experts.items():
        count = 1 + max(expert for expert, _ in parts)
        gate_up = [torch.cat([parts[e, "gate"], parts[e, "up"]]) for e in range(count)]
        fused[f"{prefix}.gate_up_proj"] = torch.stack(gate_up)
        fused[f"{prefix}.down_proj"] = torch.stack([parts[e, "down"] for e in range(count)])
    return fused


def with_prefix(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors whose name starts with ``prefix``, without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
