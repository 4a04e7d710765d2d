"""Shapes and random values of the tensors of a tiny checkpoint.

Weights are drawn so that every part of the architecture matters: norm weights and the correction
bias are not trivial, attention is peaked, and latents and indexer keys are small enough for the
epsilon of their norms to be visible.
"""

from __future__ import annotations

from typing import Any

import torch

Shapes = dict[str, tuple[int, ...]]


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
