"""Random tiny ``glm_moe_dsa`` checkpoints in the published layout, without glm5_ascend.

The default shape has fewer than a million parameters and still meets every constraint of the
quantiser and of vLLM: hidden size 12·2^k (block Hadamard), q_lora a multiple of 32, kv_lora and
v_head_dim powers of two, kv_lora + rope = 320 (a head size vLLM's MLA knows), 16 index heads (fewer
make exact ties of the index score likely), expert intermediate a multiple of 16 (int4 packing).

Weights are drawn so that every part of the architecture matters: norm weights and the correction
bias are not trivial, attention is peaked, and latents and indexer keys are small enough for the
epsilon of their norms to be visible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.fp8 import FP8_KEPT, fp8_config, quantise_blocks
from tests.support.tiny_tokenizer import write_tokenizer

Shapes = dict[str, tuple[int, ...]]

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def tiny_config(style: str = "5.2", *, mtp: bool = True, **overrides: Any) -> dict[str, Any]:
    """Return ``config.json`` of a tiny model in the style of GLM-5.1 or GLM-5.2.

    ``overrides`` replaces or adds keys by their published name; lists that depend on the number of
    layers (``indexer_types``, ``mlp_layer_types``) follow it unless they are overridden too.
    """
    if style not in ("5.1", "5.2"):
        raise ValueError(f"style must be '5.1' or '5.2', not {style!r}")
    vocab = int(overrides.get("vocab_size", 320))
    config: dict[str, Any] = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "eos_token_id": [vocab - 21, vocab - 14, vocab - 12],
        "ep_size": 1,
        "first_k_dense_replace": 1,
        "head_dim": 64 if style == "5.1" else 80,
        "hidden_act": "silu",
        "hidden_size": 96,
        "index_head_dim": 128,
        "index_n_heads": 16,
        "index_topk": 16,
        "indexer_rope_interleave": True,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "kv_lora_rank": 256,
        "max_position_embeddings": 4096,
        "model_type": "glm_moe_dsa",
        "moe_intermediate_size": 16,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "num_nextn_predict_layers": int(mtp),
        "pad_token_id": vocab - 21,
        "pretraining_tp": 1,
        "q_lora_rank": 32,
        "qk_head_dim": 80,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_interleave": True,
        "rope_parameters": {
            "rope_theta": 1_000_000 if style == "5.1" else 8_000_000,
            "rope_type": "default",
        },
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "transformers_version": "5.4.0" if style == "5.1" else "5.19.0",
        "use_cache": True,
        "v_head_dim": 16,
        "vocab_size": vocab,
    }
    if style == "5.2":
        config |= {
            "index_share_for_mtp_iteration": True,
            "index_skip_topk_offset": 3,
            "index_topk_freq": 4,
            "index_topk_pattern": None,
            "moe_router_dtype": "float32",
        }
    config |= overrides
    layers, dense = config["num_hidden_layers"], config["first_k_dense_replace"]
    config["qk_head_dim"] = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    config["num_key_value_heads"] = config["num_attention_heads"]
    if style == "5.2":
        config.setdefault("indexer_types", _schedule(config))
        config.setdefault("mlp_layer_types", ["dense"] * dense + ["sparse"] * (layers - dense))
    return config


def _schedule(config: dict[str, Any]) -> list[str]:
    freq, offset = config["index_topk_freq"], config["index_skip_topk_offset"]
    return [
        "full" if max(i - offset + 1, 0) % freq == 0 else "shared"
        for i in range(config["num_hidden_layers"])
    ]


def tensor_shapes(config: dict[str, Any]) -> Shapes:
    """Return name -> shape of every tensor of the BF16 checkpoint (model.md 2)."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    layers = config["num_hidden_layers"]
    types = config.get("indexer_types") or ["full"] * layers
    for layer in range(layers + config["num_nextn_predict_layers"]):
        is_mtp = layer >= layers
        full = is_mtp or types[layer] == "full"
        dense = layer < config["first_k_dense_replace"]
        part = _attention_shapes(config, full) | _mlp_shapes(config, dense)
        part |= {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
        if is_mtp:
            part |= {"eh_proj.weight": (hidden, 2 * hidden)}
            part |= {f"{n}.weight": (hidden,) for n in ("enorm", "hnorm", "shared_head.norm")}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in part.items()}
    return shapes


def _attention_shapes(c: dict[str, Any], full: bool) -> Shapes:
    hidden, heads, latent = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    shapes: Shapes = {
        "q_a_proj.weight": (c["q_lora_rank"], hidden),
        "q_a_layernorm.weight": (c["q_lora_rank"],),
        "q_b_proj.weight": (heads * (nope + rope), c["q_lora_rank"]),
        "kv_a_proj_with_mqa.weight": (latent + rope, hidden),
        "kv_a_layernorm.weight": (latent,),
        "kv_b_proj.weight": (heads * (nope + value), latent),
        "o_proj.weight": (hidden, heads * value),
    }
    if full:
        width = c["index_head_dim"]
        shapes |= {
            "indexer.wq_b.weight": (c["index_n_heads"] * width, c["q_lora_rank"]),
            "indexer.wk.weight": (width, hidden),
            "indexer.k_norm.weight": (width,),
            "indexer.k_norm.bias": (width,),
            "indexer.weights_proj.weight": (c["index_n_heads"], hidden),
        }
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def _mlp_shapes(c: dict[str, Any], dense: bool) -> Shapes:
    hidden = c["hidden_size"]

    def mlp(prefix: str, inner: int) -> Shapes:
        return {
            f"{prefix}.gate_proj.weight": (inner, hidden),
            f"{prefix}.up_proj.weight": (inner, hidden),
            f"{prefix}.down_proj.weight": (hidden, inner),
        }

    if dense:
        return mlp("mlp", c["intermediate_size"])
    inner, experts = c["moe_intermediate_size"], c["n_routed_experts"]
    shapes: Shapes = {
        "mlp.gate.weight": (experts, hidden),
        "mlp.gate.e_score_correction_bias": (experts,),
    }
    for expert in range(experts):
        shapes |= mlp(f"mlp.experts.{expert}", inner)
    return shapes | mlp("mlp.shared_experts", inner * c["n_shared_experts"])


def _draw(
    name: str, shape: tuple[int, ...], config: dict[str, Any], gen: torch.Generator
) -> torch.Tensor:
    normal = torch.randn(shape, generator=gen)
    if name.endswith("e_score_correction_bias"):
        return 0.1 * normal
    if name.endswith("k_norm.bias"):
        return 0.5 * normal
    if name.endswith("norm.weight"):
        return 1.0 + 0.3 * normal.clamp(-2, 2)
    if name == "model.embed_tokens.weight":
        return normal
    values: torch.Tensor = normal / shape[1] ** 0.5
    # Small latents and index keys: the epsilon of their norms becomes a visible part of them.
    if name.endswith(("q_a_proj.weight", "indexer.wk.weight")):
        values *= 0.03
    if name.endswith("kv_a_proj_with_mqa.weight"):
        values[: config["kv_lora_rank"]] *= 0.03
    if name.endswith("q_b_proj.weight"):
        values *= 2.0
    return values


def random_tensors(
    config: dict[str, Any],
    *,
    seed: int,
    dtype: torch.dtype,
    outlier_channels: int = 0,
    dead_expert: bool = False,
) -> dict[str, torch.Tensor]:
    """Return random weights for ``config``; the correction bias is F32, everything else ``dtype``.

    ``outlier_channels`` multiplies that many embedding channels by 20. ``dead_expert`` gives the
    last expert of every layer a correction bias of -100, so that no token is routed to it.
    """
    gen = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in tensor_shapes(config).items():
        values = _draw(name, shape, config, gen)
        is_bias = name.endswith("e_score_correction_bias")
        if is_bias and dead_expert:
            values[-1] = -100.0
        tensors[name] = values.to(torch.float32 if is_bias else dtype)
    if outlier_channels:
        channels = torch.randperm(config["hidden_size"], generator=gen)[:outlier_channels]
        tensors["model.embed_tokens.weight"][:, channels] *= 20
    return tensors


def write_tiny(
    directory: Path,
    *,
    style: str = "5.2",
    seed: int = 0,
    dtype: str = "bfloat16",
    mtp: bool = True,
    shards: int = 1,
    index: bool = True,
    tokenizer: bool = False,
    fp8: bool = False,
    outlier_channels: int = 0,
    dead_expert: bool = False,
    **overrides: Any,
) -> Path:
    """Write a random checkpoint with ``config.json`` to ``directory`` and return the directory.

    Args:
        directory: created if absent.
        style: "5.2" (IndexShare, theta 8e6) or "5.1" (an indexer in every layer, theta 1e6).
        dtype: "bfloat16" or "float32" for all tensors but the correction bias.
        mtp: write the MTP layer (index ``num_hidden_layers``).
        shards: number of safetensors files; ``index`` adds ``model.safetensors.index.json``.
        tokenizer: also write a byte-level tokenizer with GLM's special tokens and chat template.
        fp8: store the linear layers as FP8 in 128 x 128 blocks with ``weight_scale_inv``.
        overrides: keys of ``config.json``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = tiny_config(style, mtp=mtp, **{"dtype": dtype, **overrides})
    tensors = random_tensors(
        config,
        seed=seed,
        dtype=_DTYPES[dtype],
        outlier_channels=outlier_channels,
        dead_expert=dead_expert,
    )
    if fp8:
        kept = [name for name in tensors if name.endswith(FP8_KEPT)]
        config["quantization_config"] = fp8_config(kept)
        tensors = dict(_as_fp8(tensors))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    _write_shards(directory, tensors, shards, index)
    if tokenizer:
        write_tokenizer(directory, config["vocab_size"])
    return directory


def _as_fp8(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, values in tensors.items():
        if name.endswith(FP8_KEPT):
            yield name, values
            continue
        codes, scales = quantise_blocks(values)
        yield name, codes
        yield f"{name}_scale_inv", scales


def _write_shards(
    directory: Path, tensors: dict[str, torch.Tensor], shards: int, index: bool
) -> None:
    names = list(tensors)
    step = -(-len(names) // shards)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        part = names[number * step : (number + 1) * step]
        file = (
            "model.safetensors"
            if shards == 1
            else f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        )
        save_file({n: tensors[n].contiguous() for n in part}, directory / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    if index:
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        content = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(content, indent=2))
