"""Writing and reading checkpoints in the published layout (per-expert names, BF16)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from small_glm5.config import SmallConfig, config_json, generation_config_json
from small_glm5.params import Params, init_params, shapes

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def to_checkpoint(cfg: SmallConfig, params: Params, bias: Tensor) -> dict[str, Tensor]:
    """Split fused experts and round to BF16; the correction bias stays F32."""
    out: dict[str, Tensor] = {}
    for name, value in params.items():
        v = value.detach().to(torch.bfloat16)
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            for e in range(cfg.experts):
                gate, up = v[e].chunk(2)
                out[f"{stem}{e}.gate_proj.weight"] = gate.clone()
                out[f"{stem}{e}.up_proj.weight"] = up.clone()
        elif name.endswith("experts.down_proj"):
            stem = name.removesuffix("down_proj")
            for e in range(cfg.experts):
                out[f"{stem}{e}.down_proj.weight"] = v[e].clone()
        else:
            out[name] = v.clone()
    for i in range(cfg.dense_layers, cfg.layers + 1):
        out[f"model.layers.{i}.mlp.gate.e_score_correction_bias"] = bias[i].float().clone()
    return out


def from_checkpoint(cfg: SmallConfig, path: Path, dtype: torch.dtype) -> tuple[Params, Tensor]:
    """Read ``model.safetensors`` of ``path`` into fused parameters and the bias [L + 1, E]."""
    raw = load_file(path / "model.safetensors")
    params: Params = {}
    for name in shapes(cfg):
        if name.endswith("experts.gate_up_proj"):
            s = name.removesuffix("gate_up_proj")
            rows = [
                torch.cat((raw[f"{s}{e}.gate_proj.weight"], raw[f"{s}{e}.up_proj.weight"]))
                for e in range(cfg.experts)
            ]
            params[name] = torch.stack(rows).to(dtype)
        elif name.endswith("experts.down_proj"):
            s = name.removesuffix("down_proj")
            params[name] = torch.stack(
                [raw[f"{s}{e}.down_proj.weight"] for e in range(cfg.experts)]
            ).to(dtype)
        else:
            params[name] = raw[name].to(dtype)
    bias = torch.zeros(cfg.layers + 1, cfg.experts)
    for i in range(cfg.dense_layers, cfg.layers + 1):
        bias[i] = raw[f"model.layers.{i}.mlp.gate.e_score_correction_bias"]
    return params, bias


def export_model(
    cfg: SmallConfig, params: Params, bias: Tensor, tokenizer: Path, out: Path
) -> None:
    """Write weights, configuration, tokenizer and chat template into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = to_checkpoint(cfg, params, bias)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for name, value in (
        ("config.json", config_json(cfg)),
        ("generation_config.json", generation_config_json()),
    ):
        (out / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, out / name)


def export_random(cfg: SmallConfig, tokenizer: Path, out: Path, seed: int) -> None:
    """Write a randomly initialised model of the same layout, with non-trivial selections."""
    gen = torch.Generator().manual_seed(seed)
    params: Params = {}
    for name, value in init_params(cfg, seed).items():
        noise = torch.randn(value.shape, generator=gen)
        if name.endswith("norm.bias"):
            params[name] = 0.1 * noise
        elif "norm" in name.rsplit(".", 2)[-2]:
            params[name] = 1.0 + 0.1 * noise
        else:
            params[name] = 0.06 * noise
    bias = 0.02 * torch.randn(cfg.layers + 1, cfg.experts, generator=gen)
    export_model(cfg, params, bias, tokenizer, out)
