"""Round-to-nearest ``ascend`` checkpoints made from tiny ones, without the project's quantiser.

No rotation and no scale search: the point is an independently written file in the format that
vllm_ascend.md 2.4 describes, with a static W8A8 variant that the quantiser does not write yet.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.hf import HfOracle
from tests.support.weights import dequantise_fp8, read_config, read_tensors

Tensors = dict[str, torch.Tensor]
Ranges = dict[str, tuple[float, float]]

_TRUNK = re.compile(r".*\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|indexer\.wq_b)\.weight")
_MLP = re.compile(r".*\.mlp\.(shared_experts\.)?(gate|up|down)_proj\.weight")
_EXPERT = re.compile(r".*\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight")


def _rows(weight: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes in [-top - 1, top] and BF16-exact F32 scales [N, 1] by rounding."""
    scale = (weight.abs().amax(dim=1, keepdim=True) / top).to(torch.bfloat16).to(torch.float32)
    codes = torch.round(weight / scale).clamp(-top - 1, top).to(torch.int8)
    return codes, scale


def _dynamic_w8(weight: torch.Tensor) -> Tensors:
    codes, scale = _rows(weight, 127)
    return {"weight": codes, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}


def _dynamic_w4(weight: torch.Tensor, columns: int) -> Tensors:
    codes, scale = _rows(weight, 7)
    pairs = codes.view(-1, 2, codes.shape[1])
    packed = (pairs[:, 0] & 0xF) | (pairs[:, 1] << 4)
    bias = 8 * (codes * scale).view(len(codes), columns, -1).sum(dim=2)
    return {
        "weight": packed,
        "weight_scale": scale,
        "weight_offset": torch.zeros_like(scale),
        "scale_bias": bias,
    }


def _static_w8(weight: torch.Tensor, low: float, high: float) -> Tensors:
    codes, scale = _rows(weight, 127)
    step = torch.tensor([(max(high, 0.0) - min(low, 0.0)) / 255])
    step = step.to(torch.bfloat16).to(torch.float32)
    offset = torch.round(-min(low, 0.0) / step) - 128
    return {
        "weight": codes,
        "input_scale": step,
        "input_offset": offset.to(torch.int8),
        "quant_bias": -(codes.to(torch.int32).sum(dim=1) * offset).to(torch.int32),
        "deq_scale": step * scale[:, 0],
        "weight_scale": scale,
        "weight_offset": torch.zeros_like(scale),
    }


def input_ranges(source: Path, seed: int) -> Ranges:
    """Return the smallest and largest input of every trunk linear on 128 random tokens."""
    oracle = HfOracle(source)
    ranges: Ranges = {}

    def watch(name: str, module: torch.nn.Module) -> None:
        def note(_module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            ranges[name] = float(inputs[0].min()), float(inputs[0].max())

        module.register_forward_pre_hook(note)

    watched: list[tuple[str, torch.nn.Module]] = list(oracle.model.named_modules())
    mtp_prefix = f"model.layers.{oracle.layers}."
    has_mtp = bool(oracle.raw_config["num_nextn_predict_layers"])
    if has_mtp:
        watched += [(mtp_prefix + n, m) for n, m in oracle.mtp.block.named_modules()]
    for name, module in watched:
        if _TRUNK.fullmatch(f"{name}.weight"):
            watch(name, module)
    gen = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, oracle.raw_config["vocab_size"], (129,), generator=gen)
    run = oracle.forward(tokens[:-1])
    if has_mtp:
        oracle.mtp.step(tokens[1:], run.hidden)
    return ranges


def write_tiny_ascend(
    source: Path,
    destination: Path,
    *,
    scheme: str = "w4a8",
    static: bool = False,
    seed: int = 0,
) -> Path:
    """Quantise the checkpoint ``source`` to ``destination`` by rounding and return the latter.

    Args:
        scheme: "w4a8" (int4 routed experts except in the MTP layer) or "w8a8".
        static: W8A8 with calibrated per-tensor input scales for the attention and indexer linears
            instead of W8A8_DYNAMIC; q_a and kv_a share one input scale.
    """
    destination.mkdir(parents=True, exist_ok=True)
    config = read_config(source)
    layers = config["num_hidden_layers"]
    ranges = input_ranges(source, seed) if static else {}
    tensors = dequantise_fp8(read_tensors(source))
    written: Tensors = {}
    description: dict[str, Any] = {}
    for name, values in tensors.items():
        module = name.removesuffix(".weight")
        is_mtp = name.startswith(f"model.layers.{layers}.")
        parts, kind = {"weight": values}, "FLOAT"
        if _EXPERT.fullmatch(name) and scheme == "w4a8" and not is_mtp:
            columns = 16 if "down_proj" in name else 1
            parts, kind = _dynamic_w4(values.float(), columns), "W4A8_DYNAMIC"
        elif static and _TRUNK.fullmatch(name):
            parts, kind = _static_w8(values.float(), *ranges[module]), "W8A8"
        elif any(p.fullmatch(name) for p in (_TRUNK, _MLP, _EXPERT)):
            parts, kind = _dynamic_w8(values.float()), "W8A8_DYNAMIC"
        if kind == "FLOAT":
            written[name], description[name] = values, kind
            continue
        written |= {f"{module}.{part}": t for part, t in parts.items()}
        description |= {f"{module}.{part}": kind for part in parts}
    if config["num_nextn_predict_layers"]:
        for name, origin in (
            ("embed_tokens", "model.embed_tokens.weight"),
            ("shared_head.head", "lm_head.weight"),
        ):
            copied = f"model.layers.{layers}.{name}.weight"
            written[copied], description[copied] = tensors[origin].clone(), "FLOAT"
    description |= {
        "version": "1.0.0",
        "group_size": 0,
        "model_quant_type": "W4A8_DYNAMIC" if scheme == "w4a8" else "W8A8_DYNAMIC",
    }
    _write(source, destination, config, written, description)
    return destination


def _write(
    source: Path, destination: Path, config: dict[str, Any], tensors: Tensors, description: Any
) -> None:
    config.pop("quantization_config", None)
    (destination / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (destination / "quant_model_description.json").write_text(json.dumps(description, indent=2))
    stored = {name: t.contiguous() for name, t in tensors.items()}
    save_file(stored, destination / "quant_model_weights.safetensors", {"format": "pt"})
    for extra in source.glob("*token*"):
        shutil.copy(extra, destination / extra.name)
    for name in ("generation_config.json", "chat_template.jinja"):
        if (source / name).exists():
            shutil.copy(source / name, destination / name)
