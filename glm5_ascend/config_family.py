"""Refuse every model that is not GLM-5 by its name, and every switch that GLM-5 does not have."""

from __future__ import annotations

from glm5_ascend.config_fields import Fields
from glm5_ascend.errors import brief

MODEL_TYPE = "glm_moe_dsa"
ARCHITECTURE = "GlmMoeDsaForCausalLM"

_OTHER_MODELS = {
    "glm5_next": "GLM-5.3-Flash (linear attention, mHC and a vision tower), not the GLM-5 family",
    "glm4_moe": "GLM-4.5, 4.6 or 4.7 (grouped-query attention, no indexer)",
    "glm4_moe_lite": "GLM-4.7-Flash (MLA without an indexer)",
    "glm4": "GLM-4 (dense)",
    "chatglm": "ChatGLM",
    "deepseek_v2": "DeepSeek-V2",
    "deepseek_v3": "DeepSeek-V3 or R1 (MLA without an indexer)",
    "deepseek_v32": "DeepSeek-V3.2 (the same attention, another rope, router and layout)",
    "deepseek_v4": "DeepSeek-V4",
    "kimi_k2": "Kimi-K2 (a DeepSeek-V3 layout)",
}

# What the computation has built in; another value is another model.
_CONSTANTS: dict[str, object] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "moe_layer_freq": 1,
    "moe_router_dtype": "float32",
    "rope_interleave": True,
    "indexer_rope_interleave": True,
    "rope_scaling": None,
    "sliding_window": None,
    "is_encoder_decoder": False,
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READ = _words(
    """
    model_type architectures vocab_size hidden_size intermediate_size moe_intermediate_size
    num_hidden_layers num_nextn_predict_layers first_k_dense_replace num_attention_heads
    num_key_value_heads q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim
    v_head_dim index_n_heads index_head_dim index_topk index_topk_freq index_skip_topk_offset
    index_topk_pattern indexer_types index_share_for_mtp_iteration mlp_layer_types
    n_routed_experts num_experts_per_tok n_shared_experts norm_topk_prob routed_scaling_factor
    rms_norm_eps rope_parameters rope_theta max_position_embeddings eos_token_id pad_token_id
    dtype torch_dtype quantization_config
    """
)

# No effect on a forward pass: training and bookkeeping keys of the releases, keys that
# transformers' PreTrainedConfig writes for every model, and settings of its generation loop.
_IGNORED = _words(
    """
    head_dim attention_dropout initializer_range ep_size pretraining_tp use_cache bos_token_id
    layer_types transformers_version name_or_path output_router_logits router_aux_loss_coef
    aux_loss_alpha seq_aux output_attentions output_hidden_states return_dict
    return_dict_in_generate chunk_size_feed_forward id2label label2id problem_type num_labels
    torchscript pruned_heads
    finetuning_task task_specific_params tokenizer_class prefix is_decoder add_cross_attention
    cross_attention_hidden_size tie_encoder_decoder decoder_start_token_id sep_token_id
    forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size num_return_sequences output_scores remove_invalid_values
    exponential_decay_length_penalty use_bfloat16 tf_legacy_loss
    """
)

KNOWN_KEYS = _READ | _IGNORED | frozenset(_CONSTANTS)


def refuse_other_models(fields: Fields) -> None:
    """Raise ``ConfigError`` naming the family unless the file is of type ``glm_moe_dsa``."""
    kind = fields.get("model_type")
    if kind is None:
        fields.fail("missing key `model_type`", "this is not a Hugging Face model configuration")
    if kind != MODEL_TYPE:
        name = kind if isinstance(kind, str) else brief(kind)
        what = _OTHER_MODELS.get(name.removesuffix("_text"), "another model family")
        fields.fail(
            f"model_type `{name}` is {what}",
            f"this tool reads GLM-5, 5.1, 5.2 and 5.3 (model_type {MODEL_TYPE})",
        )
    names = fields.get("architectures")
    if names is not None and names != [ARCHITECTURE]:
        fields.fail(
            f"`architectures` is {brief(names)}; GLM-5 has {[ARCHITECTURE]!r}",
            "an engine picks the model by this key; restore the value of the release",
        )
    if fields.get("auto_map") is not None:
        fields.fail(
            "`auto_map` asks to run code from the checkpoint", "remove the key: it is never run"
        )


def check_computation(fields: Fields) -> None:
    """Refuse unknown keys and values of switches that would change the computation."""
    fields.refuse_unknown(KNOWN_KEYS)
    for key, value in _CONSTANTS.items():
        fields.constant(key, value)
