"""Shape of the small model and its ``config.json`` in the published GLM-5.2 style."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VOCAB_SIZE = 2048
SPECIAL_TOKENS: tuple[str, ...] = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
)
# As in the published tokenizer, markup that parsers must see is not "special" when decoding.
VISIBLE_TOKENS = SPECIAL_TOKENS[SPECIAL_TOKENS.index("<think>") :]
FIRST_SPECIAL = VOCAB_SIZE - len(SPECIAL_TOKENS)


def special_id(token: str) -> int:
    """Return the id of a special token (they end the id range in the order above)."""
    return FIRST_SPECIAL + SPECIAL_TOKENS.index(token)


EOT_ID = special_id("<|endoftext|>")
STOP_IDS: tuple[int, ...] = (EOT_ID, special_id("<|user|>"), special_id("<|observation|>"))


@dataclass(frozen=True)
class SmallConfig:
    """Dimensions; ``layers`` does not count the MTP layer, whose index is ``layers``."""

    vocab: int = VOCAB_SIZE
    hidden: int = 192
    layers: int = 7
    dense_layers: int = 1
    dense_inter: int = 512
    heads: int = 4
    q_lora: int = 96
    kv_lora: int = 256
    nope: int = 64
    rope: int = 64
    v_dim: int = 64
    index_heads: int = 16
    index_dim: int = 128
    topk: int = 64
    freq: int = 4
    offset: int = 3
    experts: int = 16
    experts_per_token: int = 4
    expert_inter: int = 48
    route_scale: float = 2.5
    eps: float = 1e-5
    k_norm_eps: float = 1e-6
    theta: float = 8_000_000.0

    @property
    def qk(self) -> int:
        """Query/key width of one head."""
        return self.nope + self.rope

    def owner(self, layer: int) -> int:
        """Return the layer whose indexer selects the keys of ``layer`` (the MTP layer owns its)."""
        if layer >= self.layers:
            return layer
        while max(layer - self.offset + 1, 0) % self.freq != 0:
            layer -= 1
        return layer

    def full_layers(self) -> list[int]:
        """Layers (MTP included) that own an indexer."""
        return [i for i in range(self.layers + 1) if self.owner(i) == i]


def config_json(cfg: SmallConfig) -> dict[str, Any]:
    """Return ``config.json`` as a dictionary, keys as in the published GLM-5.2 file."""
    types = ["full" if cfg.owner(i) == i else "shared" for i in range(cfg.layers)]
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "eos_token_id": list(STOP_IDS),
        "ep_size": 1,
        "first_k_dense_replace": cfg.dense_layers,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": cfg.hidden,
        "index_head_dim": cfg.index_dim,
        "index_n_heads": cfg.index_heads,
        "index_share_for_mtp_iteration": True,
        "index_skip_topk_offset": cfg.offset,
        "index_topk": cfg.topk,
        "index_topk_freq": cfg.freq,
        "index_topk_pattern": None,
        "indexer_rope_interleave": True,
        "indexer_types": types,
        "initializer_range": 0.02,
        "intermediate_size": cfg.dense_inter,
        "kv_lora_rank": cfg.kv_lora,
        "max_position_embeddings": 4096,
        "mlp_layer_types": ["dense"] * cfg.dense_layers
        + ["sparse"] * (cfg.layers - cfg.dense_layers),
        "model_type": "glm_moe_dsa",
        "moe_intermediate_size": cfg.expert_inter,
        "moe_layer_freq": 1,
        "moe_router_dtype": "float32",
        "n_group": 1,
        "n_routed_experts": cfg.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": cfg.heads,
        "num_experts_per_tok": cfg.experts_per_token,
        "num_hidden_layers": cfg.layers,
        "num_key_value_heads": cfg.heads,
        "num_nextn_predict_layers": 1,
        "pad_token_id": EOT_ID,
        "pretraining_tp": 1,
        "q_lora_rank": cfg.q_lora,
        "qk_head_dim": cfg.qk,
        "qk_nope_head_dim": cfg.nope,
        "qk_rope_head_dim": cfg.rope,
        "rms_norm_eps": cfg.eps,
        "rope_interleave": True,
        "rope_parameters": {"rope_theta": int(cfg.theta), "rope_type": "default"},
        "routed_scaling_factor": cfg.route_scale,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "transformers_version": "5.19.0",
        "use_cache": True,
        "v_head_dim": cfg.v_dim,
        "vocab_size": cfg.vocab,
    }


def generation_config_json() -> dict[str, Any]:
    """Return ``generation_config.json`` as a dictionary."""
    return {
        "do_sample": True,
        "eos_token_id": list(STOP_IDS),
        "pad_token_id": EOT_ID,
        "temperature": 1.0,
        "top_p": 0.95,
        "transformers_version": "5.19.0",
    }
