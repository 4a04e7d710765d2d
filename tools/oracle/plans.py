"""What every node of planned deployments would run, as ``serve --plan --dry-run`` prints it."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.deploy.catalogue.hardware import hardware
from glm5_ascend.deploy.plan_file import Plan
from tools.oracle.trials import Record
from tools.oracle.words import Command, read_command

LOADS = Path(__file__).with_name("plans.toml")
RECORDED = Path(__file__).resolve().parents[2] / "tests" / "data" / "deploy" / "plans"
# Interface and addresses are this site's; the engines are asked on one machine.
_NIC = "eth0"


def loads() -> list[dict[str, Any]]:
    """Entries of ``plans.toml``."""
    with LOADS.open("rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["plan"]
    return found


def plan_anew(load: dict[str, Any], version: str, target: Path) -> None:
    """Run ``plan`` for a release and write the plan file."""
    _run("plan", *shlex.split(load["words"]), "--for", version, "--out", str(target))


def plan_all_anew(version: str) -> None:
    """Replace the recorded plan files of a release."""
    folder = RECORDED / version
    folder.mkdir(parents=True, exist_ok=True)
    for load in loads():
        plan_anew(load, version, folder / f"{load['id']}.yaml")


def node_commands(file: Path, checkpoint: str | None = None) -> list[Command]:
    """The commands of a plan's nodes, from what ``serve --plan --dry-run`` prints."""
    plan = Plan.load(file)
    hosts = ",".join(f"10.0.0.{number + 1}" for number in range(plan.servers))
    model = [checkpoint] if checkpoint else []
    made = []
    for number in sorted(node for role in plan.roles for node in role.nodes):
        site = ["--node-rank", str(number), "--hosts", hosts, "--nic", _NIC]
        text = _run("serve", *model, "--plan", str(file), *site, "--dry-run")
        words = shlex.split(text.replace("\\\n", " "))
        words = words[1:] if words[0] == "env" else words
        found = read_command(words)
        # Where the Mooncake library lies is this machine's.
        env = {k: v for k, v in found.env.items() if k != "LD_LIBRARY_PATH"}
        made.append(replace(found, env=env))
    return made


def plans(version: str) -> list[Record]:
    """Every node's command of the recorded plans of a release: ``id``, ``chip``, ``line``,
    ``command``."""
    made = []
    for load in loads():
        file = RECORDED / version / f"{load['id']}.yaml"
        chip = hardware(Plan.load(file).sku).sku.chip
        for number, command in enumerate(node_commands(file, load.get("checkpoint"))):
            entry = {"id": f"{load['id']} node {number}", "chip": chip, "line": line_of(command)}
            made.append({**entry, "command": command})
    return made


def line_of(command: Command) -> str:
    """A command as one line for a shell."""
    variables = [f"{name}={value}" for name, value in command.env.items()]
    return shlex.join([*variables, "vllm", *command.argv])


def _run(*words: str) -> str:
    result = CliRunner().invoke(cli, words)
    if result.exit_code:
        raise RuntimeError(f"{shlex.join(words)} ended with {result.exit_code}: {result.output}")
    return result.stdout
