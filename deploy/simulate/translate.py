"""From the command that a plan runs on NPUs to the one that runs here, and what is lost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.config import Glm5Config
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.plan_file import Plan, RolePlan
from glm5_ascend.deploy.render.nodes import Node, nodes
from glm5_ascend.deploy.render.place import Place, is_split
from glm5_ascend.deploy.simulate import MARK
from glm5_ascend.deploy.simulate.clip import clip, describe
from glm5_ascend.files import DESCRIPTION_FILE

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
    "no cache is sent between engines here": ("--kv-transfer-config",),
    "only vllm-ascend reads it": ("--additional-config",),
    "there is no memory of a device; the cache has 256 MiB": ("--gpu-memory-utilization",),
    "the CPU engine captures no graphs": (
        *("--compilation-config", "--cudagraph-capture-sizes", "--no-enforce-eager"),
    ),
    "the CPU engine does not schedule ahead": ("--async-scheduling",),
    "the CPU engine keeps caches in the model's type": ("--kv-cache-dtype", "--attention-config"),
    "the model that stands in has an indexer schedule of its own": ("--hf-overrides",),
}
_SPLIT = ("prefill", "decode")
_REASONS = {flag: reason for reason, flags in _DROPPED.items() for flag in flags}
_PORTABLE = "VLLM_"
_NOT_PORTABLE = ("VLLM_ASCEND_", "VLLM_MOONCAKE_", "VLLM_ENGINE_READY_TIMEOUT_S")
_NO_NPU = ("HCCL_", "ASCEND_", "PYTORCH_NPU_", "TASK_QUEUE_", "VLLM_ASCEND_", "ACL_", "NPU_")


@dataclass(frozen=True, slots=True)
class Translation:
    """What runs here in place of a plan.

    Attributes:
        flags: flags of vLLM, the words of each.
        environ: variables of the plan that are kept.
        layout: what becomes of the layout, a line.
        notes: what was changed or dropped, a line each.
        clipped: the layout that runs.
    """

    flags: tuple[tuple[str, ...], ...]
    environ: Mapping[str, str]
    layout: str
    notes: tuple[str, ...]
    clipped: Group


def translate(plan: Plan, place: Place, model: Path, quantised: bool) -> Translation:
    """Turn what the plan runs on its servers into one engine on this CPU.

    Args:
        place: as for rendering; only port, name and the number of hosts matter.
        model: checkpoint that stands in for the plan's.
        quantised: the engine will be given a quantised copy of ``model``.

    Raises:
        PlanError: the plan cannot be rendered for NPUs either.
        ConfigError: ``model`` is no GLM-5 checkpoint.
    """
    config = Glm5Config.from_dir(model)
    heads = [node for node in nodes(plan, place) if node.is_head]
    chosen, notes = _instance(plan, heads)
    role, command = plan.roles[chosen.instance], chosen.command
    if is_split(plan):
        command = _merged(command, next(n.command for n in heads if n.role == "prefill"), notes)
    experts = command.switch("--enable-expert-parallel")
    clipped = clip(role.group, config, experts)
    command = _without(command, _REASONS, notes)
    command = _model_flags(command, config, model, quantised, notes)
    command = _sized(command, clipped, place, config, notes)
    environ = _variables(chosen.command.env, notes)
    if clipped.tp == 1:
        # The one worker of a rank runs in the process of its engine: half the processes to start.
        environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    layout = _layout(plan, role, clipped, experts)
    flags = tuple(tuple(option.words) for option in command.options)
    return Translation(flags, environ, layout, tuple(notes), clipped)


def _layout(plan: Plan, role: RolePlan, clipped: Group, experts: bool) -> str:
    becomes = describe(role.group, clipped, experts)
    if not is_split(plan):
        return f"{role.role}: {becomes}"
    sides = {kind: [r.layout for r in plan.roles if r.role == kind] for kind in _SPLIT}
    named = ", ".join(f"{kind} {len(one)} x {one[0]}" for kind, one in sides.items())
    return f"{named}; of decode {becomes}, for both"


def _instance(plan: Plan, heads: list[Node]) -> tuple[Node, list[str]]:
    """The instance that is simulated: the first, of split plans the first that decodes."""
    if is_split(plan):
        chosen = next(node for node in heads if node.role == "decode")
        return chosen, [
            "merged: prefill and decode are one engine without a proxy, because the CPU engine has "
            "no connector that sends a cache"
        ]
    others = len(heads) - 1
    notes = [f"left out: {others} more instance(s), which share nothing with it"] if others else []
    return heads[0], notes


def _merged(decode: ServeCommand, prefill: ServeCommand, notes: list[str]) -> ServeCommand:
    """The command of an engine that does both: decode's, with the larger of the sizes."""
    merged = decode
    for name in ("--max-model-len", "--max-num-batched-tokens"):
        sizes = (decode.whole(name, 0), prefill.whole(name, 0))
        if max(sizes) and sizes[0] != max(sizes):
            merged = merged.with_flag(name, max(sizes))
            notes.append(f"changed: {name} {sizes[0]} -> {sizes[1]}, prefill's")
    ours = {option.name: option.words for option in merged.options}
    same = (*_REASONS, "--tensor-parallel-size", "--data-parallel-size", "--max-model-len")
    own = [
        " ".join(option.words)
        for option in prefill.options
        if option.name not in same and ours.get(option.name) != option.words
        if option.name != "--max-num-batched-tokens"
    ]
    if own:
        notes.append(f"dropped: {', '.join(own)} of prefill (decode's flags count)")
    return merged


def _sized(
    command: ServeCommand, clipped: Group, place: Place, config: Glm5Config, notes: list[str]
) -> ServeCommand:
    for name, size in (
        ("--tensor-parallel-size", clipped.tp),
        ("--data-parallel-size", clipped.dp),
    ):
        command = command.with_flag(name, None if size == 1 else size)
    longest = command.whole("--max-model-len", config.max_position_embeddings)
    if longest > config.max_position_embeddings:
        command = command.with_flag("--max-model-len", config.max_position_embeddings)
        notes.append(
            f"changed: --max-model-len {longest} -> {config.max_position_embeddings}, "
            "the most of the model that stands in"
        )
    notes.append(
        f"changed: --host {command.text('--host')} -> 127.0.0.1, --port -> {place.port}; "
        f"{MARK} is a second model name, so that accept can tell"
    )
    command = command.with_flag("--host", "127.0.0.1").with_flag("--port", place.port)
    command = command.with_flag("--served-model-name", [place.name, MARK])
    if clipped.dp > 1 and not command.given("--api-server-count"):
        command = command.with_flag("--api-server-count", 1)
        notes.append("added: --api-server-count 1, where vLLM starts one per DP rank")
    if clipped.tp == 1:
        command = command.with_flag("--distributed-executor-backend", "uni")
    return command


def _model_flags(
    command: ServeCommand, config: Glm5Config, model: Path, quantised: bool, notes: list[str]
) -> ServeCommand:
    """Without what the model that stands in cannot do."""
    described = quantised or (model / DESCRIPTION_FILE).is_file()
    reasons = {}
    if not described:
        reasons["--quantization"] = f"{model} is not quantised"
    if not config.num_nextn_predict_layers:
        reasons["--speculative-config"] = f"{model} has no layer for drafts"
    return _without(command, reasons, notes)


def _without(command: ServeCommand, reasons: Mapping[str, str], notes: list[str]) -> ServeCommand:
    lost: dict[str, list[str]] = {}
    for option in command.options:
        if option.name in reasons:
            lost.setdefault(reasons[option.name], []).append(" ".join(option.words))
    notes += [f"dropped: {', '.join(flags)} ({reason})" for reason, flags in lost.items()]
    return command.without(*reasons)


def _variables(env: Mapping[str, str], notes: list[str]) -> dict[str, str]:
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
