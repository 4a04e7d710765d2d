"""The tensors that a GLM-5 source checkpoint must hold, name by name.

59 870 names for GLM-5 and 5.1, 59 585 for 5.2 and 5.3 at full size; the FP8 releases add one
``weight_scale_inv`` per converted weight. Linear weights are [out, in]; experts are stored one by
one. The MTP layer is a full decoder layer with its own indexer, and shares embedding and head.
"""

from __future__ import annotations

from dataclasses import dataclass

from glm5_ascend.config import Glm5Config

_STORED_DTYPE = {"bfloat16": "BF16", "float32": "F32"}
_CONVERTIBLE = (
    "_proj.weight",
    ".kv_a_proj_with_mqa.weight",
    ".indexer.wq_b.weight",
    ".indexer.wk.weight",
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and safetensors dtype string ("BF16", "F32", "I8", "F8_E4M3", ...) of one tensor."""

    shape: tuple[int, ...]
    dtype: str


def expected_tensors(config: Glm5Config) -> dict[str, TensorSpec]:
    """Name to shape and dtype of every tensor of a source checkpoint, in model order.

    All tensors have the model's dtype except ``e_score_correction_bias``, which is F32 in every
    release, and the weights and scales of an FP8 checkpoint.
    """
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size)
    }
    for layer in range(config.layer_count):
        prefix = f"model.layers.{layer}."
        for name, shape in _layer(config, layer).items():
            shapes[prefix + name] = shape
    shapes["model.norm.weight"] = (config.hidden_size,)
    shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)

    model_dtype = _STORED_DTYPE[config.dtype]
    result: dict[str, TensorSpec] = {}
    for name, shape in shapes.items():
        if name.endswith(".e_score_correction_bias"):
            result[name] = TensorSpec(shape, "F32")
        elif config.fp8 is not None and is_fp8(config, name):
            result[name] = TensorSpec(shape, "F8_E4M3")
            result[name + "_scale_inv"] = TensorSpec(config.fp8.grid(shape), "F32")
        else:
            result[name] = TensorSpec(shape, model_dtype)
    return result


def is_fp8(config: Glm5Config, name: str) -> bool:
    """Whether the weight ``name`` is stored as FP8 blocks: a linear that is not kept.

    Embedding, head, norms and the router are never converted, listed or not.
    """
    if config.fp8 is None or not name.endswith(_CONVERTIBLE):
        return False
    return not config.fp8.keeps(name.removesuffix(".weight"))


def _layer(config: Glm5Config, layer: int) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    tensors: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    tensors |= {f"self_attn.{name}": shape for name, shape in _attention(config).items()}
    if config.has_indexer(layer):
        tensors |= {f"self_attn.indexer.{name}": s for name, s in _indexer(config).items()}
    tensors["post_attention_layernorm.weight"] = (hidden,)
    if config.is_moe(layer):
        tensors |= _experts(config)
    else:
        tensors |= _mlp("mlp", hidden, config.intermediate_size)
    if config.is_mtp(layer):
        tensors |= {
            "eh_proj.weight": (hidden, 2 * hidden),
            "enorm.weight": (hidden,),
            "hnorm.weight": (hidden,),
            "shared_head.norm.weight": (hidden,),
        }
    return tensors


def _attention(config: Glm5Config) -> dict[str, tuple[int, ...]]:
    heads, latent = config.num_attention_heads, config.kv_lora_rank
    return {
        "q_a_proj.weight": (config.q_lora_rank, config.hidden_size),
        "q_a_layernorm.weight": (config.q_lora_rank,),
        "q_b_proj.weight": (heads * config.qk_head_dim, config.q_lora_rank),
        "kv_a_proj_with_mqa.weight": (latent + config.qk_rope_head_dim, config.hidden_size),
        "kv_a_layernorm.weight": (latent,),
        "kv_b_proj.weight": (heads * (config.qk_nope_head_dim + config.v_head_dim), latent),
        "o_proj.weight": (config.hidden_size, heads * config.v_head_dim),
    }


def _indexer(config: Glm5Config) -> dict[str, tuple[int, ...]]:
    heads, width = config.index_n_heads, config.index_head_dim
    return {
        "wq_b.weight": (heads * width, config.q_lora_rank),
        "wk.weight": (width, config.hidden_size),
        "k_norm.weight": (width,),
        "k_norm.bias": (width,),
        "weights_proj.weight": (heads, config.hidden_size),
    }


def _experts(config: Glm5Config) -> dict[str, tuple[int, ...]]:
    hidden, width, experts = (
        config.hidden_size,
        config.moe_intermediate_size,
        config.n_routed_experts,
    )
    tensors: dict[str, tuple[int, ...]] = {
        "mlp.gate.weight": (experts, hidden),
        "mlp.gate.e_score_correction_bias": (experts,),
    }
    for expert in range(experts):
        tensors |= _mlp(f"mlp.experts.{expert}", hidden, width)
    return tensors | _mlp("mlp.shared_experts", hidden, width * config.n_shared_experts)


def _mlp(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }
