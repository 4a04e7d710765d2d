"""Configurations of tiny models in the style of GLM-5.1 and GLM-5.2.

The default shape has fewer than a million parameters and still meets every constraint of the
quantiser and of vLLM: hidden size 12·2^k (block Hadamard), q_lora a multiple of 32, kv_lora and
v_head_dim powers of two, kv_lora + rope = 320 (a head size vLLM's MLA knows), 16 index heads (fewer
make exact ties of the index score likely), expert intermediate a multiple of 16 (int4 packing).
"""

from __future__ import annotations

from typing import Any

# What no style and no option changes.
_COMMON: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "ep_size": 1,
    "first_k_dense_replace": 1,
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
    "pretraining_tp": 1,
    "q_lora_rank": 32,
    "qk_head_dim": 80,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_interleave": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "use_cache": True,
    "v_head_dim": 16,
}


def tiny_config(style: str = "5.2", *, mtp: bool = True, **overrides: Any) -> dict[str, Any]:
    """Return ``config.json`` of a tiny model in the style of GLM-5.1 or GLM-5.2.

    ``overrides`` replaces or adds keys by their published name; lists that depend on the number of
    layers (``indexer_types``, ``mlp_layer_types``) follow it unless they are overridden too.
    """
    if style not in ("5.1", "5.2"):
        raise ValueError(f"style must be '5.1' or '5.2', not {style!r}")
    vocab = int(overrides.get("vocab_size", 320))
    config: dict[str, Any] = _COMMON | {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "eos_token_id": [vocab - 21, vocab - 14, vocab - 12],
        "head_dim": 64 if style == "5.1" else 80,
        "num_nextn_predict_layers": int(mtp),
        "pad_token_id": vocab - 21,
        "rope_parameters": {
            "rope_theta": 1_000_000 if style == "5.1" else 8_000_000,
            "rope_type": "default",
        },
        "transformers_version": "5.4.0" if style == "5.1" else "5.19.0",
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
