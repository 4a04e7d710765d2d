"""Which device vLLM runs the model on, and what that means for the operators."""

from __future__ import annotations

from torch import Tensor
from vllm.platforms import current_platform

from glm5_ascend.env import read


def on_cpu() -> bool:
    """Whether the float layers are this project's; on a GPU they stay vLLM's."""
    return bool(current_platform.is_cpu())


def sparse_backend(tensor: Tensor) -> str:
    """Backend of the indexer and of sparse attention: on a GPU the Triton kernels.

    ``GLM5_ASCEND_OP_BACKEND`` takes precedence everywhere.
    """
    if tensor.device.type == "cuda" and read("GLM5_ASCEND_OP_BACKEND") == "auto":
        return "triton"
    return "auto"
