"""Which backend runs an operator. An explicit request never falls back to another backend.

``auto`` takes ``GLM5_ASCEND_OP_BACKEND`` when it is set (that counts as an explicit request) and
otherwise the default of the tensor's device. A backend of an operator exists when its folder has
the backend's file; nothing of a vendor package is imported to find out.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch

from glm5_ascend.errors import BackendUnavailable

OPERATORS = (
    "lightning_indexer",
    "sparse_flash_attention",
    "moe",
    "quant_linear",
    "paged_cache",
    "norm_rope",
)


class _Backend(NamedTuple):
    module: str  # file name in the operator's folder, without .py
    package: str | None  # what has to be installed
    hint: str


_BACKENDS = {
    "reference": _Backend("reference", None, ""),
    "cpu": _Backend("cpu", None, "use backend 'reference'"),
    "emulated": _Backend("emulated", None, "use backend 'reference'"),
    "triton": _Backend("triton_kernel", "triton", "install glm5-ascend[nvidia]"),
    "ascendc": _Backend("ascendc", "torch_npu", "run inside the vllm-ascend image"),
    "torch_npu": _Backend("torch_npu_op", "torch_npu", "run inside the vllm-ascend image"),
}
_DEVICE_DEFAULT = {"cpu": "reference", "cuda": "reference", "npu": "reference"}


class Availability(NamedTuple):
    """One row of the table: ``reason`` is empty when the backend can run."""

    operator: str
    backend: str
    reason: str


def select(operator: str, backend: str, tensor: torch.Tensor) -> str:
    """Name of the backend that runs ``operator`` for ``tensor``; ``backend`` may be ``auto``.

    Raises:
        BackendUnavailable: the named backend does not exist or cannot run here.
    """
    name = backend
    if name == "auto":
        name = os.environ.get("GLM5_ASCEND_OP_BACKEND", "auto")
    if name == "auto":
        name = _DEVICE_DEFAULT.get(tensor.device.type, "reference")
    if reason := _why_not(operator, name):
        known = _BACKENDS.get(name)
        hint = known.hint if known else f"choose one of {', '.join(_BACKENDS)}"
        raise BackendUnavailable(f"backend '{name}' of {operator} is not available: {reason}", hint)
    return name


@cache
def _why_not(operator: str, name: str) -> str:
    if name not in _BACKENDS:
        return "no backend has this name"
    backend = _BACKENDS[name]
    if find_spec(f"glm5_ascend.ops.{operator}.{backend.module}") is None:
        return "this release has no such implementation"
    if backend.package is not None and find_spec(backend.package) is None:
        return f"package {backend.package} is not installed"
    return ""


def availability() -> list[Availability]:
    """Every operator with every backend, and why one cannot run."""
    return [Availability(op, name, _why_not(op, name)) for op in OPERATORS for name in _BACKENDS]
