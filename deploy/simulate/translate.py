"""From the commands that a plan runs on NPUs to those that run here, and what is lost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.config import Glm5Config
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.plan_file import Plan
from glm5_ascend.deploy.render.nodes import Node, nodes
from glm5_ascend.deploy.render.place import Place, is_split
from glm5_ascend.deploy.simulate import MARK
from glm5_ascend.deploy.simulate.clip import PROCESSES, clip, describe
from glm5_ascend.deploy.simulate.losses import REASONS, variables, without
from glm5_ascend.files import DESCRIPTION_FILE

CONNECTOR = "FolderConnector"
_MODULE = "glm5_ascend.simulator.transfer"
_SIZES = ("--tensor-parallel-size", "--data-parallel-size")
_TRANSFER = "--kv-transfer-config"
# The one worker of a rank runs in the process of its engine, where vLLM starts two.
_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@dataclass(frozen=True, slots=True)
class Translation:
    """An engine that runs here in place of an instance of the plan.

    Attributes:
        role: ``mixed``, ``prefill`` or ``decode``.
        port: of its API.
        flags: flags of vLLM, the words of each.
        environ: variables of the plan that are kept.
        layout: what becomes of the layout, a line.
        notes: what is changed, added or dropped, a line each.
    """

    role: str
    port: int
    flags: tuple[tuple[str, ...], ...]
    environ: Mapping[str, str]
    layout: str
    notes: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The flags as one argument vector."""
        return [word for flag in self.flags for word in flag]


@dataclass(frozen=True, slots=True)
class StandIn:
    """The checkpoint in place of the plan's; ``quantised`` where it is before it is served."""

    source: Path
    config: Glm5Config
    quantised: bool

    @classmethod
    def of(cls, source: Path, quantise: bool) -> StandIn:
        """Read its configuration.

        Raises:
            ConfigError: it is no GLM-5 checkpoint.
        """
        quantised = quantise or (source / DESCRIPTION_FILE).is_file()
        return cls(source, Glm5Config.from_dir(source), quantised)


def translate(
    plan: Plan, place: Place, model: StandIn, folder: Path, ports: Sequence[int]
) -> list[Translation]:
    """Turn what the plan runs on its servers into one engine on this CPU, or two of a split plan.

    Args:
        place: as for rendering; only name and the number of hosts matter.
        folder: for the caches that go from prefill to decode.
        ports: of the engines, decode's before prefill's.

    Raises:
        PlanError: the plan cannot be rendered for NPUs either.
    """
    heads = [node for node in nodes(plan, place) if node.is_head]
    kinds = ("decode", "prefill") if is_split(plan) else ("mixed",)
    made = []
    for kind, port in zip(kinds, ports, strict=True):
        same = [node for node in heads if node.role == kind]
        made.append(_engine(plan, place, same, model, port, PROCESSES // len(kinds), folder))
    return made


def _engine(
    plan: Plan,
    place: Place,
    same: list[Node],
    model: StandIn,
    port: int,
    most: int,
    folder: Path,
) -> Translation:
    role, command = plan.roles[same[0].instance], same[0].command
    notes = []
    if len(same) > 1:
        notes.append(f"left out: {len(same) - 1} more of these instances")
    experts = command.switch("--enable-expert-parallel")
    clipped = clip(role.group, model.config, experts, most)
    command = without(command, REASONS, notes)
    command = without(command, _beyond(model), notes)
    command = _address(command, place, port, notes)
    command = _transfer(command, folder, notes)
    for name, size in zip(_SIZES, (clipped.tp, clipped.dp), strict=True):
        command = command.with_flag(name, None if size == 1 else size)
    command = _length(command, model.config.max_position_embeddings, notes)
    if clipped.dp > 1 and not command.given("--api-server-count"):
        command = command.with_flag("--api-server-count", 1)
        notes.append("added: --api-server-count 1, where vLLM starts one per DP rank")
    environ = variables(command.env, notes)
    if clipped.tp == 1:
        command = command.with_flag("--distributed-executor-backend", "uni")
        wanted = {name: os.environ.get(name, value) for name, value in _ONE_PROCESS.items()}
        environ |= wanted
        added = " ".join(f"{name}={value}" for name, value in wanted.items())
        notes.append(f"added: --distributed-executor-backend uni, {added}: a rank is one process")
    flags = tuple(tuple(option.words) for option in command.options)
    layout = f"{role.role}: {describe(role.group, clipped, experts)}"
    return Translation(role.role, port, flags, environ, layout, tuple(notes))


def _beyond(model: StandIn) -> dict[str, str]:
    """Flags that the checkpoint cannot serve, with the reason."""
    reasons = {}
    if not model.quantised:
        reasons["--quantization"] = f"{model.source} is not quantised"
    if not model.config.num_nextn_predict_layers:
        reasons["--speculative-config"] = f"{model.source} has no layer for drafts"
    return reasons


def _address(command: ServeCommand, place: Place, port: int, notes: list[str]) -> ServeCommand:
    notes.append(
        f"changed: --host {command.text('--host')} -> 127.0.0.1, --port -> {port}; "
        f"{MARK} is a second model name, so that accept can tell"
    )
    command = command.with_flag("--host", "127.0.0.1").with_flag("--port", port)
    return command.with_flag("--served-model-name", [place.name, MARK])


def _transfer(command: ServeCommand, folder: Path, notes: list[str]) -> ServeCommand:
    planned = command.json(_TRANSFER)
    if not planned:
        return command
    notes.append(
        f"changed: {_TRANSFER} {command.text(_TRANSFER)} -> {CONNECTOR}, which sends caches "
        "through files"
    )
    ours = {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": _MODULE,
        "kv_role": planned["kv_role"],
        "kv_connector_extra_config": {"folder": str(folder)},
    }
    return command.with_json(_TRANSFER, ours)


def _length(command: ServeCommand, most: int, notes: list[str]) -> ServeCommand:
    longest = command.whole("--max-model-len", most)
    if longest <= most:
        return command
    notes.append(f"changed: --max-model-len {longest} -> {most}, the stand-in's most")
    return command.with_flag("--max-model-len", most)
