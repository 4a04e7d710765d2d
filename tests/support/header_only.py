"""Checkpoints of any size that hold headers and no data, written without glm5_ascend's writer."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1, "I32": 4}
Specs = Mapping[str, tuple[tuple[int, ...], str]]


def write_headers(
    directory: Path, config: Mapping[str, Any], specs: Specs, *, files: int, sparse: bool = False
) -> Path:
    """Write ``config.json`` and ``files`` safetensors files.

    Args:
        directory: created if absent.
        config: content of ``config.json``.
        specs: shape and dtype of each tensor.
        files: how many; tensors are dealt out in order.
        sparse: give each file its full size, as a hole that takes no space on disk.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    names = list(specs)
    step = -(-len(names) // files)
    for number in range(files):
        part = names[number * step : (number + 1) * step]
        path = directory / f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        header, size = _header({name: specs[name] for name in part})
        with open(path, "wb") as stream:
            stream.write(struct.pack("<Q", len(header)) + header)
            if sparse:
                stream.truncate(8 + len(header) + size)
    return directory


def _header(specs: Specs) -> tuple[bytes, int]:
    entries: dict[str, Any] = {}
    position = 0
    for name, (shape, dtype) in specs.items():
        end = position + math.prod(shape) * _BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    return json.dumps(entries).encode(), position


def glm5_specs(config: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Tensors of a GLM-5 release from its ``config.json``: the published table, written out."""
    made: dict[str, tuple[tuple[int, ...], str]] = {}
    c = config
    hidden, experts, moe = c["hidden_size"], c["n_routed_experts"], c["moe_intermediate_size"]
    heads, latent, query = c["num_attention_heads"], c["kv_lora_rank"], c["q_lora_rank"]
    rope, nope, value = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    layers, types = c["num_hidden_layers"], c.get("indexer_types")
    fp8 = (c.get("quantization_config") or {}).get("quant_method") == "fp8"

    def put(
        name: str, shape: tuple[int, ...], dtype: str = "BF16", *, linear: bool = False
    ) -> None:
        if linear and fp8:
            made[name] = shape, "F8_E4M3"
            made[f"{name}_scale_inv"] = (-(-shape[0] // 128), -(-shape[1] // 128)), "F32"
        else:
            made[name] = shape, dtype

    def mlp(prefix: str, width: int) -> None:
        put(f"{prefix}.gate_proj.weight", (width, hidden), linear=True)
        put(f"{prefix}.up_proj.weight", (width, hidden), linear=True)
        put(f"{prefix}.down_proj.weight", (hidden, width), linear=True)

    put("model.embed_tokens.weight", (c["vocab_size"], hidden))
    put("lm_head.weight", (c["vocab_size"], hidden))
    put("model.norm.weight", (hidden,))
    for layer in range(layers + 1):
        at = f"model.layers.{layer}."
        put(f"{at}input_layernorm.weight", (hidden,))
        put(f"{at}post_attention_layernorm.weight", (hidden,))
        put(f"{at}self_attn.q_a_proj.weight", (query, hidden), linear=True)
        put(f"{at}self_attn.q_a_layernorm.weight", (query,))
        put(f"{at}self_attn.q_b_proj.weight", (heads * (nope + rope), query), linear=True)
        put(f"{at}self_attn.kv_a_proj_with_mqa.weight", (latent + rope, hidden), linear=True)
        put(f"{at}self_attn.kv_a_layernorm.weight", (latent,))
        put(f"{at}self_attn.kv_b_proj.weight", (heads * (nope + value), latent), linear=True)
        put(f"{at}self_attn.o_proj.weight", (hidden, heads * value), linear=True)
        if layer == layers or types is None or types[layer] == "full":
            width = c["index_n_heads"] * c["index_head_dim"]
            put(f"{at}self_attn.indexer.wq_b.weight", (width, query), linear=True)
            put(f"{at}self_attn.indexer.wk.weight", (c["index_head_dim"], hidden), linear=True)
            put(f"{at}self_attn.indexer.k_norm.weight", (c["index_head_dim"],))
            put(f"{at}self_attn.indexer.k_norm.bias", (c["index_head_dim"],))
            put(f"{at}self_attn.indexer.weights_proj.weight", (c["index_n_heads"], hidden))
        if layer < c["first_k_dense_replace"]:
            mlp(f"{at}mlp", c["intermediate_size"])
            continue
        put(f"{at}mlp.gate.weight", (experts, hidden))
        put(f"{at}mlp.gate.e_score_correction_bias", (experts,), "F32")
        for expert in range(experts):
            mlp(f"{at}mlp.experts.{expert}", moe)
        mlp(f"{at}mlp.shared_experts", moe * c["n_shared_experts"])
    mtp = f"model.layers.{layers}."
    put(f"{mtp}eh_proj.weight", (hidden, 2 * hidden))
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        put(f"{mtp}{norm}.weight", (hidden,))
    return made
