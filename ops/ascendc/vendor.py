"""The vendor's package torch_npu, imported at the first call that needs it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import torch

from glm5_ascend.errors import BackendUnavailable

HINT = (
    "run inside the vllm-ascend image, whose CANN torch_npu needs; with torch_npu but no CANN, "
    "TORCH_DEVICE_BACKEND_AUTOLOAD=0 lets torch itself be imported"
)
A3 = "Ascend910_93"  # how the names of Atlas A3 devices start; A2's start with Ascend910B


def operators() -> Any:
    """``torch.ops.npu``, with torch_npu's operators in it.

    Raises:
        BackendUnavailable: torch_npu cannot be imported here.
    """
    _import()
    return torch.ops.npu


def device_name() -> str:
    """Name of the current NPU, such as ``Ascend910B3`` or ``Ascend910_9392``.

    Raises:
        BackendUnavailable: torch_npu cannot be imported here.
    """
    return str(_import().npu.get_device_name())


@cache
def _import() -> Any:
    try:
        return import_module("torch_npu")
    except (ImportError, RuntimeError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackendUnavailable(f"torch_npu cannot be imported: {first}", HINT) from error
