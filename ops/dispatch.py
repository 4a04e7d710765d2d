"""Which backend runs an operator. An explicit request never falls back to another backend.

``auto`` takes ``GLM5_ASCEND_OP_BACKEND`` when that names a backend, which then counts as an
explicit request, and otherwise the default of the tensor's device. On an NPU that is the vendor's
operator where it takes the arguments, which its module's ``refuses`` tells, and ``reference`` on
the NPU otherwise. An operator has a backend when its folder has the backend's file; no vendor
package is imported to find out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import torch

from glm5_ascend import env
from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.ascendc import library
from glm5_ascend.ops.errors import ArgumentError, Declined
from glm5_ascend.ops.native import compiler

# Operator (or group of small functions) -> its folder.
OPERATORS = {
    "lightning_indexer": "lightning_indexer",
    "lightning_indexer_quant": "lightning_indexer",
    "sparse_flash_attention": "sparse_flash_attention",
    "kv_quant_sparse_flash_attention": "sparse_flash_attention",
    "mlapo": "mlapo",
    "hadamard_quant": "hadamard_quant",
    "paged_cache": "paged_cache",
    "norm_rope": "norm_rope",
    "quant_linear": "quant_linear",
    "moe": "moe",
}


class _Backend(NamedTuple):
    module: str  # file in the operator's folder, without .py
    package: str | None = None  # what has to be installed
    remedy: str = ""
    device: str | None = None  # type of device of its tensors
    probe: Callable[[], object] | None = None  # raises BackendUnavailable


def _find_cuda() -> None:
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise BackendUnavailable(
            "no CUDA device was found",
            "set TRITON_INTERPRET=1 to run the kernels in Triton's interpreter, very slowly",
        )


_IMAGE = "run inside the vllm-ascend image"
_BACKENDS = {
    "reference": _Backend("reference"),
    "cpu": _Backend("cpu", device="cpu", probe=lambda: compiler.find()),
    "emulated": _Backend("emulated", device="cpu", probe=lambda: compiler.find_for_emulator()),
    "triton": _Backend(
        "triton_kernel", "triton", "install glm5-ascend[nvidia]", probe=lambda: _find_cuda()
    ),
    # Folders ascendc/ hold the kernels, so the module has another name.
    "ascendc": _Backend("ascendc_npu", "torch_npu", _IMAGE, "npu", lambda: library.find()),
    "torch_npu": _Backend("torch_npu_op", "torch_npu", _IMAGE, "npu"),
}
VARIABLE = "GLM5_ASCEND_OP_BACKEND"
_DEVICE_DEFAULT = {"cpu": "cpu", "cuda": "reference", "npu": "reference"}
# What ``auto`` asks before the default; these have a function ``refuses``.
_PREFERRED = {"npu": ("torch_npu",)}


class Availability(NamedTuple):
    """One row of the table; ``reason`` and ``hint`` are empty when the backend can run."""

    operator: str
    backend: str
    reason: str
    hint: str


def select(operator: str, backend: str, tensor: torch.Tensor) -> str:
    """Name of the backend that runs ``operator`` for ``tensor``; ``backend`` may be ``auto``.

    Raises:
        BackendUnavailable: the named backend does not exist or cannot run here.
        ArgumentError: backend 'cpu' for a tensor in another device's memory.
    """
    name = env.read(VARIABLE) if backend == "auto" else backend
    if name == "auto":
        name = default(tensor.device.type, tensor.dtype)
    row = _look_up(operator, name)
    if row.reason:
        message = f"backend '{name}' of {operator} is not available: {row.reason}"
        raise BackendUnavailable(message, row.hint)
    wanted = _BACKENDS[name].device
    if wanted is not None and tensor.device.type != wanted:
        kind = wanted.upper()
        raise ArgumentError(f"backend '{name}' takes {kind} tensors, not one on {tensor.device}")
    return name


_WITH_FP8 = ("reference", "triton")


def with_fp8(operator: str, backend: str, tensor: torch.Tensor) -> str:
    """``select`` for a call on e4m3 codes, which no NPU before Atlas 950 has.

    Raises:
        Declined: the backend does not take them.
        BackendUnavailable, ArgumentError: as ``select``.
    """
    name = select(operator, backend, tensor)
    if name not in _WITH_FP8:
        raise Declined(
            f"backend '{name}' of {operator} does not take float8_e4m3fn",
            "choose backend 'reference', on a CUDA device 'triton', or int8 codes",
        )
    return name


def load(operator: str, backend: str, tensor: torch.Tensor) -> ModuleType:
    """What holds the functions of the backend that ``select`` names.

    Where ``auto`` chooses by arguments, calling one of its functions does.

    Raises:
        BackendUnavailable, ArgumentError: as ``select``.
    """
    named = os.environ.get(VARIABLE, "") if backend == "auto" else backend
    if named in _COMMON and tensor.is_cpu and "cpu" not in _PREFERRED:
        return _on_cpu(operator, named or "auto", tensor.dtype)
    name = select(operator, backend, tensor)
    preferred = _PREFERRED.get(tensor.device.type, ())
    if preferred and backend == "auto" and env.read(VARIABLE) == "auto":
        usable = [other for other in preferred if not _look_up(operator, other).reason]
        if usable:
            return _Choice([_module(operator, each) for each in (*usable, name)])
    return _module(operator, name)


# Names for which ``load`` keeps what ``select`` found for CPU tensors: a decode step asks a hundred
# times.
_COMMON = ("", "cpu", "reference")


@cache
def _on_cpu(operator: str, name: str, dtype: torch.dtype) -> ModuleType:
    return _module(operator, select(operator, name, torch.empty(0, dtype=dtype)))


class _Choice(ModuleType):
    """Functions of several backends: a call runs on the first one that does not refuse it.

    The last one takes every call; a variant of ``forward`` that it lacks is its ``forward``. It has
    no plans (``ops/plans.py``): what a backend refuses can depend on values.
    """

    def __init__(self, modules: list[ModuleType]) -> None:
        super().__init__("auto")
        self._modules = modules

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("plan"):
            raise AttributeError(name)

        def call(*arguments: Any, **options: Any) -> Any:
            *preferred, last = self._modules
            for module in preferred:
                if module.refuses(name, *arguments, **options) is None:
                    return getattr(module, name)(*arguments, **options)
            return getattr(last, name, last.forward)(*arguments, **options)

        return call


def default(device: str, dtype: torch.dtype = torch.float32) -> str:
    """What ``auto`` takes for tensors on a device of type ``device``.

    F64 is the precision of oracles; no backend but the reference computes in it.
    """
    return "reference" if dtype == torch.float64 else _DEVICE_DEFAULT.get(device, "reference")


@cache
def _module(operator: str, name: str) -> ModuleType:
    return import_module(f"glm5_ascend.ops.{OPERATORS[operator]}.{_BACKENDS[name].module}")


@cache
def _look_up(operator: str, name: str) -> Availability:
    backend = _BACKENDS.get(name)
    if backend is None:
        return Availability(
            operator, name, "no backend has this name", f"choose one of {', '.join(_BACKENDS)}"
        )
    if find_spec(f"glm5_ascend.ops.{OPERATORS[operator]}.{backend.module}") is None:
        return Availability(
            operator, name, "this release does not implement it", "use backend 'reference'"
        )
    if backend.package is not None and find_spec(backend.package) is None:
        return Availability(
            operator, name, f"package {backend.package} is not installed", backend.remedy
        )
    if backend.probe is not None:
        try:
            backend.probe()
        except BackendUnavailable as missing:
            return Availability(operator, name, missing.message, missing.hint)
    return Availability(operator, name, "", "")


def availability() -> list[Availability]:
    """Every operator with every backend, and why one cannot run."""
    return [_look_up(operator, name) for operator in OPERATORS for name in _BACKENDS]
