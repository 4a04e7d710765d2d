"""The platform on NVIDIA GPUs: vLLM's own, with this project's model and sparse attention.

Written against the sources of vLLM 0.32, not run on a GPU. It changes nothing for models other than
``glm_moe_dsa``.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms.cuda import CudaPlatform

from glm5_ascend.errors import ConfigError
from glm5_ascend.simulator import MODEL_TYPE
from glm5_ascend.simulator.platform import (
    BLOCK_SIZE,
    SparseMlaPlatform,
    adopt_model,
    model_config,
    refuse,
)

_CACHE_DTYPES = ("auto", "bfloat16")


class Glm5CudaPlatform(SparseMlaPlatform, CudaPlatform):  # type: ignore[misc]
    """CUDA platform with the sparse MLA backend and our model, eager."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        super().check_and_update_config(vllm_config)
        model = vllm_config.model_config
        if model is None or getattr(model.hf_text_config, "model_type", None) != MODEL_TYPE:
            return
        model_config(model)
        refuse(vllm_config)
        cache = vllm_config.cache_config
        if cache.cache_dtype not in _CACHE_DTYPES:
            raise ConfigError(
                f"--kv-cache-dtype {cache.cache_dtype} is not supported by the sparse attention",
                "leave the flag out",
            )
        if not cache.user_specified_block_size:
            cache.block_size = BLOCK_SIZE
        from vllm.config import CompilationMode, CUDAGraphMode  # vllm.config imports the platform

        # The operators read lengths on the host, so no graph can hold them.
        vllm_config.compilation_config.mode = CompilationMode.NONE
        vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
        adopt_model(vllm_config)
