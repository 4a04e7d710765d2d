"""Pretends to vllm-ascend that it runs on a chip: the answers its Python asks of the device."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from tools.oracle.inside import inert

TOTAL_BYTES = 61 * 2**30
DIES_PER_SERVER = {"A2": 8, "A3": 16, "A5": 8}
PLUGINS = ("ascend", "ascend_kv_connector", "ascend_model", "ascend_model_loader")


def pretend(chip: str) -> None:
    """Install the stand-ins for one server of ``chip`` ("A2", "A3", "A5").

    Must run before vLLM is imported: the chip is fixed when vllm-ascend is, as in its images.
    """
    inert.install(inert.DEVICE_LIBRARIES)
    _without_torchvision()
    import torch_npu

    torch.utils.rename_privateuse1_backend("npu")
    npu = _npu_module(DIES_PER_SERVER[chip])
    torch._register_device_module("npu", npu)
    sys.modules["torch.npu"] = npu
    torch_npu.npu = npu
    torch_npu.npu_format_cast = _same
    torch_npu.float4_e2m1fn_x2, torch_npu.hifloat8, torch_npu.float8_e8m0fnu = 296, 290, 293
    torch.version.cann = None
    torch.distributed.is_hccl_available = lambda: True
    build = types.ModuleType("vllm_ascend._build_info")
    build.__device_type__ = chip
    sys.modules[build.__name__] = build


def _without_torchvision() -> None:
    """vllm-ascend patches models of images, whose transformers modules import torchvision.

    PyPI's torchvision needs a CUDA build of torch. transformers must not think that it is there.
    """
    from transformers.utils import is_torchvision_available

    is_torchvision_available()
    inert.install(("torchvision",))


def _same(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    return tensor


def _npu_module(dies: int) -> types.ModuleType:
    npu: Any = inert.InertModule("torch.npu")
    npu.is_available = npu.is_initialized = lambda: True
    npu.device_count = lambda: dies
    npu.current_device = lambda: "cpu"
    npu.mem_get_info = lambda device=None: (TOTAL_BYTES, TOTAL_BYTES)
    npu.get_device_name = lambda device=None: "Ascend910"
    npu._is_in_bad_fork = lambda: False
    for name in ("empty_cache", "set_device", "synchronize", "manual_seed_all"):
        setattr(npu, name, lambda *args, **kwargs: None)
    return npu
