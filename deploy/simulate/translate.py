"""From the command that a plan runs on NPUs to the one that runs here, and what is lost."""

from __future__ import annotations

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
from glm5_ascend.deploy.simulate.losses import REASONS, variables, without
from glm5_ascend.files import DESCRIPTION_FILE

_SIZES = ("--tensor-parallel-size", "--data-parallel-size")
_LARGER = ("--max-model-len", "--max-num-batched-tokens")
_SPLIT = ("prefill", "decode")
_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


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
    command = without(command, REASONS, notes)
    command = _model_flags(command, config, model, quantised, notes)
    command = _sized(command, clipped, place, config, notes)
    environ = variables(command.env, notes)
    if clipped.tp == 1:
        environ |= _ONE_PROCESS
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
    """The command of an engine that does both: decode's, with the larger of the sizes.

    Variables that only prefill sets are taken over; its flags that differ are noted.
    """
    merged = decode
    for name in _LARGER:
        own, other = decode.whole(name, 0), prefill.whole(name, 0)
        if other > own:
            merged = merged.with_flag(name, other)
            notes.append(f"changed: {name} {own} -> {other}, prefill's")
    known = [option.words for option in decode.options]
    lost = [
        " ".join(option.words)
        for option in prefill.options
        if option.name not in (*_LARGER, *_SIZES) and option.words not in known
    ]
    for name, value in prefill.env.items():
        if name not in merged.env:
            merged = merged.with_env(name, value)
        elif merged.env[name] != value:
            lost.append(f"{name}={value}")
    if lost:
        notes.append(f"dropped: {', '.join(lost)} of prefill (decode's count)")
    return merged


def _sized(
    command: ServeCommand, clipped: Group, place: Place, config: Glm5Config, notes: list[str]
) -> ServeCommand:
    for name, size in zip(_SIZES, (clipped.tp, clipped.dp), strict=True):
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
        notes.append(
            "added: --distributed-executor-backend uni, VLLM_ENABLE_V1_MULTIPROCESSING=0: "
            "a rank is one process, where vLLM starts two"
        )
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
    return without(command, reasons, notes)
