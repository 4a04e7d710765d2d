"""What is neither weight nor cache: activations, communication buffers, graphs, the runtime.

The constants come from start-up logs of vllm-ascend (README.md); the halving of activations by
sequence parallelism is an assumption that two published 1M recipes bound from above.
"""

from __future__ import annotations

from glm5_ascend.deploy.catalogue import Model
from glm5_ascend.deploy.catalogue.hardware import GIB
from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.memory.settings import Settings

MIB = 1 << 20
# Decode nodes of 32 to 164 tokens a step report 0.3 to 0.6 GiB, 4096 tokens 2.0 GiB (#10700).
_ACTIVATION_FLOOR = 0.3 * GIB
_ACTIVATION_PER_TOKEN = 1.7 * GIB / 4096
_SPLIT_SHARE = 0.5
# 2.07 GiB of non-torch memory with two buffers of 200 MiB (#10700).
_RUNTIME = 2.07 * GIB - 2 * 200 * MIB
_GRAPHS = 0.44 * GIB
_LOGIT_BYTES = 4
# Taken by driver and runtime before the engine looks (60.6 of 61.27 GiB are free).
_STARTUP = 0.67 * GIB


def overhead_bytes(settings: Settings) -> dict[str, float]:
    """Bytes on a die of ``activation``, ``hccl``, ``runtime`` and ``graphs``."""
    share = _SPLIT_SHARE if settings.sequence_parallel or settings.dsa_cp else 1.0
    per_token = _ACTIVATION_PER_TOKEN * share
    # Each rank gathers the logits of the whole vocabulary to sample.
    logits = settings.rows * settings.model.vocab * _LOGIT_BYTES
    return {
        "activation": _ACTIVATION_FLOOR + settings.max_num_batched_tokens * per_token + logits,
        "hccl": 2.0 * settings.buffsize * MIB,
        "runtime": _RUNTIME,
        "graphs": _GRAPHS if settings.graph else 0.0,
    }


def outside_bytes(settings: Settings) -> tuple[float, float]:
    """Bytes outside of the engine's budget: what may be needed there, and what there is.

    A mixed node profiles a prefill, which is too large for the fused dispatch, so its buffers are
    allocated after the cache has taken the whole budget (vllm-ascend #7793).
    """
    total = settings.sku.memory_bytes
    there = total * (1 - settings.utilisation) - _STARTUP
    late = 2.0 * settings.buffsize * MIB if settings.role == "mixed" else 0.0
    return late, there


def least_buffsize(model: Model, group: Group, tokens: int) -> int:
    """The smallest HCCL_BUFFSIZE in MiB that dispatch and combine take, full mesh.

    Args:
        tokens: of a DP rank in one step; the TP ranks share them.

    Source: ``2 (B D E + B C k)`` bytes with ``D = a512(a32(2 h) + 44)``, ``C = a512(2 h)``, E
    experts, k per token; CANN's tiling check as vllm-ascend's logs print it.
    """
    per_rank = -(-tokens // group.tp)
    row = 2 * model.hidden
    dispatched = _up(_up(row, 32) + 44, 512) * model.experts
    combined = _up(row, 512) * model.experts_per_token
    return -(-2 * per_rank * (dispatched + combined) // MIB)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
