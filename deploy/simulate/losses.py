"""What a plan sets and a CPU has no use for, by the reason why."""

from __future__ import annotations

import os
from collections.abc import Mapping

from glm5_ascend.deploy.check.command_line import ServeCommand

# Flags that have no meaning here, by the reason why.
_DROPPED = {
    "every rank is on this machine": (
        *("--data-parallel-size-local", "--data-parallel-start-rank", "--data-parallel-rank"),
        *("--data-parallel-address", "--data-parallel-rpc-port", "--data-parallel-hybrid-lb"),
        *("--data-parallel-external-lb", "--nnodes", "--node-rank", "--master-addr"),
        *("--master-port", "--headless", "--distributed-executor-backend"),
    ),
    "the CPU engine has no pipelines": ("--pipeline-parallel-size",),
    "the CPU engine has no context parallelism": (
        *("--decode-context-parallel-size", "--prefill-context-parallel-size"),
        *("--cp-kv-cache-interleave-size", "--dcp-kv-cache-interleave-size"),
    ),
    "the CPU engine does not balance experts": ("--enable-eplb", "--eplb-config"),
    "only vllm-ascend reads it": ("--additional-config",),
    "there is no memory of a device; the cache has 256 MiB": ("--gpu-memory-utilization",),
    "the CPU engine captures no graphs": (
        *("--compilation-config", "--cudagraph-capture-sizes", "--no-enforce-eager"),
    ),
    "the CPU engine does not schedule ahead": ("--async-scheduling",),
    "the CPU engine keeps caches in the model's type": ("--kv-cache-dtype", "--attention-config"),
    "the model that stands in has an indexer schedule of its own": ("--hf-overrides",),
}
REASONS = {flag: reason for reason, flags in _DROPPED.items() for flag in flags}
_PORTABLE = "VLLM_"
_NOT_PORTABLE = ("VLLM_ASCEND_", "VLLM_MOONCAKE_", "VLLM_ENGINE_READY_TIMEOUT_S")
_NO_NPU = ("HCCL_", "ASCEND_", "PYTORCH_NPU_", "TASK_QUEUE_", "VLLM_ASCEND_", "ACL_", "NPU_")


def without(command: ServeCommand, reasons: Mapping[str, str], notes: list[str]) -> ServeCommand:
    """The command without the flags in ``reasons``; a note for each reason that applies."""
    lost: dict[str, list[str]] = {}
    for option in command.options:
        if option.name in reasons:
            lost.setdefault(reasons[option.name], []).append(" ".join(option.words))
    notes += [f"dropped: {', '.join(flags)} ({reason})" for reason, flags in lost.items()]
    return command.without(*reasons)


def variables(env: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    """The variables that mean something here; what becomes of each is noted."""
    kept: dict[str, str] = {}
    lost: dict[str, list[str]] = {}
    for name, value in env.items():
        if name.startswith(_PORTABLE) and not name.startswith(_NOT_PORTABLE):
            kept[name] = os.environ.get(name, value)
            continue
        reason = "a setting of the plan's servers"
        if name.startswith(_NO_NPU):
            reason = "no NPU is involved"
        elif name.endswith("_SOCKET_IFNAME"):
            reason = "every rank is on this machine"
        lost.setdefault(reason, []).append(f"{name}={value}")
    notes += [f"dropped: {', '.join(names)} ({reason})" for reason, names in lost.items()]
    if kept:
        notes.append(f"kept: {', '.join(f'{name}={value}' for name, value in kept.items())}")
    return kept
