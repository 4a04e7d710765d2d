"""Checkpoints of a few kilobytes, written with the safetensors library itself."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from glm5_ascend.checkpoint import DTYPE_BYTES, TensorSpec, expected_tensors
from glm5_ascend.config import Glm5Config

_NAMES = {
    "BF16": "bfloat16",
    "F32": "float32",
    "F8_E4M3": "float8_e4m3fn",
    "I8": "int8",
    "I32": "int32",
}
Stored = dict[str, tuple[TensorSpec, bytes]]

CONFIG: dict[str, Any] = {
    "model_type": "glm_moe_dsa",
    "dtype": "bfloat16",
    "vocab_size": 24,
    "hidden_size": 12,
    "intermediate_size": 20,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 1,
    "first_k_dense_replace": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 6,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
    "index_n_heads": 2,
    "index_head_dim": 4,
    "index_topk": 8,
    "index_topk_freq": 2,
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "eos_token_id": [1],
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
}


def config(**overrides: Any) -> Glm5Config:
    """The micro configuration; layers 0 and 1 own indexers, 2 shares, 3 is the MTP layer."""
    return Glm5Config.from_dict(CONFIG | overrides, source="micro")


def tensors(of: Glm5Config, seed: int = 0) -> Stored:
    """Every expected tensor with finite pseudo-random content."""
    rng = np.random.default_rng(seed)
    result: Stored = {}
    for name, spec in expected_tensors(of).items():
        count = math.prod(spec.shape)
        values = rng.standard_normal(count).astype(np.float32)
        if spec.dtype == "F32":
            data = values.tobytes()
        elif spec.dtype == "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            data = rng.integers(0, 0x78, count * DTYPE_BYTES[spec.dtype], dtype=np.uint8).tobytes()
        result[name] = (spec, data)
    return result


def save(path: Path, stored: Stored) -> None:
    """Write one file with the library."""
    buffers = {name: np.frombuffer(data, np.uint8) for name, (_, data) in stored.items()}
    entries = {
        name: safetensors.TensorSpec(
            dtype=_NAMES[spec.dtype],
            shape=list(spec.shape),
            data_ptr=buffers[name].ctypes.data,
            data_len=len(data),
        )
        for name, (spec, data) in stored.items()
    }
    safetensors.serialize_file(entries, path, {"format": "pt"})


def write(
    directory: Path,
    stored: Stored | None = None,
    *,
    shards: int = 1,
    index: bool = False,
    **overrides: Any,
) -> Stored:
    """Write a checkpoint of ``shards`` files and return its tensors; ``overrides`` of CONFIG."""
    if stored is None:
        stored = tensors(config(**overrides))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | overrides))
    names = list(stored)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        part = {name: stored[name] for name in names[number::shards]}
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        save(directory / file, part)
        weight_map |= dict.fromkeys(part, file)
    if index:
        write_index(directory, weight_map)
    return stored


def write_index(directory: Path, weight_map: dict[str, str]) -> None:
    """Write ``model.safetensors.index.json``."""
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(text)


def without(stored: Stored, names: Iterable[str]) -> Stored:
    """A copy lacking some tensors."""
    dropped = set(names)
    return {name: value for name, value in stored.items() if name not in dropped}
