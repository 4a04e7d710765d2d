"""A synthetic checkpoint of a chosen size, with a release's tensor shapes and few of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from glm5_ascend.checkpoint import TensorSpec, expected_tensors, tensor_bytes, write_shard
from glm5_ascend.config import Glm5Config
from tools.results_table import ROOT

RELEASE = ROOT / "tests" / "data" / "configs" / "GLM-5.2.json"
# Three dense layers and three with experts, of which the last share an indexer, and the MTP layer.
_LAYERS, _DENSE = 6, 3
# From this size on every matrix has the release's own shape; vocabulary and attention take 9 GB.
FULL_BYTES = 12_000_000_000
_SMALL = {
    "hidden_size": 768,
    "intermediate_size": 1536,
    "moe_intermediate_size": 256,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 256,
    "vocab_size": 4096,
    "eos_token_id": [4000],
    "pad_token_id": 4000,
    "index_n_heads": 16,
}
_FILES = 16
_POOL = 1 << 24


def config_of(nbytes: int) -> dict[str, Any]:
    """A ``config.json`` of at least ``nbytes`` of BF16 weights: so many experts.

    Raises:
        SystemExit: two experts are more than that.
    """
    raw: dict[str, Any] = json.loads(RELEASE.read_text(encoding="utf-8"))
    raw |= {} if nbytes >= FULL_BYTES else _SMALL
    raw["num_hidden_layers"] = _LAYERS
    raw["indexer_types"] = raw["indexer_types"][:_LAYERS]
    raw["mlp_layer_types"] = raw["mlp_layer_types"][:_LAYERS]
    one, two = (_bytes(raw | {"n_routed_experts": count}) for count in (8, 9))
    # Rounded up: the size is a least one.
    count = 8 - (one - nbytes) // (two - one)
    if count < 2:
        raise SystemExit(f"error: {nbytes:,} bytes hold no model of this shape")
    active = min(raw["num_experts_per_tok"], count)
    return raw | {"n_routed_experts": count, "num_experts_per_tok": active}


def write(directory: Path, nbytes: int, seed: int) -> Glm5Config:
    """Write the checkpoint with seeded normal weights; return its configuration."""
    raw = config_of(nbytes)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(raw, indent=1))
    config = Glm5Config.from_dict(raw, source="synthetic")
    tensors = expected_tensors(config)
    pool = _pool(seed)
    limit = sum(map(tensor_bytes, tensors.values())) / _FILES
    groups: list[dict[str, TensorSpec]] = [{}]
    filled = 0
    for name, spec in tensors.items():
        if filled > limit:
            groups.append({})
            filled = 0
        groups[-1][name] = spec
        filled += tensor_bytes(spec)
    for number, group in enumerate(groups, start=1):
        file = directory / f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        write_shard(file, group, _data(group, pool, number), {"format": "pt"})
    return config


def _bytes(raw: dict[str, Any]) -> int:
    config = Glm5Config.from_dict(raw, source="synthetic")
    return sum(map(tensor_bytes, expected_tensors(config).values()))


def _pool(seed: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """BF16 bits of normal numbers, a few of them thirty times as large."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(_POOL, dtype=np.float32) * np.float32(0.02)
    values[generator.integers(0, _POOL, _POOL >> 10)] *= np.float32(30)
    values += np.float32(1e-4)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _data(
    group: dict[str, TensorSpec], pool: np.ndarray[Any, np.dtype[np.uint16]], salt: int
) -> Iterator[tuple[str, memoryview]]:
    """A different stretch of the pool for each tensor; norms around one."""
    for number, (name, spec) in enumerate(group.items()):
        count = math.prod(spec.shape)
        start = (salt * 7_368_787 + number * 1_299_709) % _POOL
        bits = pool[start : start + count]
        if len(bits) < count:
            bits = np.concatenate((bits, np.resize(pool, count - len(bits))))
        if len(spec.shape) == 1:
            small = (bits.astype(np.uint32) << 16).view(np.float32)
            around_one = small if "bias" in name else small + np.float32(1)
            bits = (around_one.view(np.uint32) >> 16).astype(np.uint16)
        if spec.dtype == "F32":
            wide = bits.astype(np.uint32) << 16
            yield name, wide.view(np.uint8).data
        else:
            yield name, bits.view(np.uint8).data
