"""From a chosen point to the plan file: flags, variables and additional_config of every role."""

from __future__ import annotations

import math

from glm5_ascend.deploy.memory.settings import Settings
from glm5_ascend.deploy.performance.scenario import Deployment
from glm5_ascend.deploy.plan_file import Plan, RolePlan, Value
from glm5_ascend.deploy.planner.search import Point, deployment
from glm5_ascend.deploy.planner.targets import Targets

_ENGINE_SWITCHES_SINCE = (0, 29)
# Series with one switch for both caches; the others before 0.29 have two.
_ONE_SWITCH = ((0, 18), (0, 19), (0, 20), (0, 21), (0, 22), (0, 24), (0, 25))
_ENV = {"HCCL_OP_EXPANSION_MODE": "AIV", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}


def plan_file(
    targets: Targets, point: Point, index_every: int, predicted: dict[str, Value]
) -> Plan:
    """The plan of ``point``; servers are handed out in order, prefill first."""
    chosen: Deployment = deployment(targets, point, index_every)
    roles: list[RolePlan] = []
    node = 0
    per_server = targets.hardware.sku.dies_per_server
    for settings in (chosen.first, chosen.second):
        if settings is None:
            continue
        one = settings.group.dies // settings.group.copies
        for _ in range(settings.group.copies):
            servers = max(one // per_server, 1)
            nodes = tuple(range(node, node + servers))
            node += servers
            roles.append(_role(settings, nodes, index_every))
    return Plan(
        model=targets.model.name,
        quant=targets.quant,
        kv=point.decoding.settings.kv,
        release=targets.release.text,
        sku=targets.hardware.sku.name,
        servers=targets.hardware.servers,
        roles=tuple(roles),
        predicted=predicted,
    ).check()


def _role(settings: Settings, nodes: tuple[int, ...], index_every: int) -> RolePlan:
    group = settings.group
    sequences = settings.max_num_seqs
    if settings.graph and settings.dsa_cp:
        # Steps of fewer tokens than TP leave no capture size that it divides, and the engine stops.
        sequences = max(sequences, math.ceil(group.tp / (1 + settings.draft_tokens)))
    flags: dict[str, Value] = {
        "tensor-parallel-size": group.tp,
        "data-parallel-size": group.dp,
        "enable-expert-parallel": True,
        "max-model-len": settings.max_model_len,
        "max-num-seqs": sequences,
        "max-num-batched-tokens": settings.max_num_batched_tokens,
        "gpu-memory-utilization": settings.utilisation,
        "trust-remote-code": True,
    }
    if settings.quant != "bf16":
        flags["quantization"] = "ascend"
    if group.dcp > 1:
        flags["decode-context-parallel-size"] = group.dcp
        flags["cp-kv-cache-interleave-size"] = settings.block
    if settings.draft_tokens:
        flags["speculative-config"] = {
            "method": "deepseek_mtp",
            "num_speculative_tokens": settings.draft_tokens,
            "enforce_eager": True,
        }
    if settings.graph:
        flags["compilation-config"] = {"cudagraph_mode": "FULL_DECODE_ONLY"}
        flags["async-scheduling"] = True
    else:
        flags["enforce-eager"] = True
    if index_every > 1:
        flags["hf-overrides"] = {"use_index_cache": True, "index_topk_freq": index_every}
    extra: dict[str, Value] = {}
    if settings.dsa_cp:
        extra |= {"enable_dsa_cp": True, "enable_flashcomm1": True}
    if settings.role == "decode":
        extra["scheduler_config"] = {"recompute_scheduler_enable": True}
    _cache(settings, flags, extra)
    layout = f"dp{group.dp}tp{group.tp}" + (f"dcp{group.dcp}" if group.dcp > 1 else "")
    env = {**_ENV, "HCCL_BUFFSIZE": str(settings.buffsize)}
    return RolePlan(settings.role, nodes, layout, flags, env, extra)


def _cache(settings: Settings, flags: dict[str, Value], extra: dict[str, Value]) -> None:
    """The switches of C8 as the release spells them."""
    latent, keys = settings.kv in ("sfa-c8", "both"), settings.kv in ("li-c8", "both")
    series = settings.release.series
    if series >= _ENGINE_SWITCHES_SINCE:
        if latent:
            flags["kv-cache-dtype"] = "int8"
        if keys:
            flags["attention-config"] = {"indexer_kv_dtype": "int8"}
    elif series in _ONE_SWITCH:
        if latent or keys:
            extra["enable_sparse_c8"] = True
    else:
        if latent:
            extra["enable_sparse_sfa_c8"] = True
        if keys:
            extra["enable_sparse_li_c8"] = True
