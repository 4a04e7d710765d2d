"""``plan``, then ``serve --plan --dry-run`` on every node: commands that the real parsers accept.

Verdicts on plans of every kind are recorded; some plans are made anew and asked again.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.check.sites import Site, read_sites
from glm5_ascend.deploy.plan_file import Plan
from tests.tools.test_strict_oracle_rerun import installed
from tools.oracle.plans import RECORDED, line_of, loads, node_commands, plan_anew, plans
from tools.oracle.record import PLANS, read_rows
from tools.oracle.trials import run_commands
from tools.oracle.words import Command, resolve_model

NEW, OLD = "0.30.0rc2", "0.23.0.post1"
ROWS = read_rows(PLANS)
LOADS = {load["id"]: load for load in loads()}
# One server, and prefill and decode over four with int8 caches: one chip, so one oracle answers.
ASKED = ("a3x1-long", "a3x4-c8")


@pytest.mark.parametrize("version", [OLD, NEW])
def test_recorded_commands_are_those_of_today(version: str) -> None:
    made = {row["id"]: row for row in plans(version)}
    recorded = {row["id"]: row for row in ROWS if row["release"] == version}
    assert set(made) == set(recorded)
    for name, row in made.items():
        assert (recorded[name]["line"], recorded[name]["chip"]) == (row["line"], row["chip"]), name


def test_every_command_was_accepted() -> None:
    assert len(ROWS) >= 40
    assert [(row["release"], row["id"]) for row in ROWS if row["verdict"] != "accepted"] == []


def test_every_kind_of_plan_is_recorded() -> None:
    for version in (OLD, NEW):
        found = [Plan.load(file) for file in sorted((RECORDED / version).iterdir())]
        assert len(found) == len(LOADS) >= 8
        flags = [role.flags for plan in found for role in plan.roles]
        assert {plan.servers for plan in found} == {1, 2, 4}
        assert {plan.sku[:2] for plan in found} == {"a2", "a3"}
        assert {plan.quant for plan in found} == {"bf16", "w8a8", "w4a8"}
        assert {plan.kv for plan in found} >= {"bf16", "li-c8", "both"}
        assert {role.role for plan in found for role in plan.roles} == {
            "mixed",
            "prefill",
            "decode",
        }
        assert {"speculative-config" in one for one in flags} == {True, False}
        assert {"decode-context-parallel-size" in one for one in flags} == {True, False}


@pytest.mark.parametrize(
    ("name", "version"), [*((name, NEW) for name in LOADS), *((name, OLD) for name in ASKED)]
)
def test_what_is_planned_today_passes_check(name: str, version: str, tmp_path: Path) -> None:
    load = LOADS[name]
    file = tmp_path / "plan.yaml"
    plan_anew(load, version, file)
    plan = Plan.load(file)
    commands = node_commands(file, load.get("checkpoint"))
    assert len(commands) == sum(len(role.nodes) for role in plan.roles)
    scripts = [tmp_path / f"node{number}.sh" for number in range(len(commands))]
    for script, command in zip(scripts, commands, strict=True):
        script.write_text(line_of(command))
    hardware = f"{plan.sku}:{plan.servers}"
    words = ["check", *map(str, scripts), "--for", version, "--hw", hardware, "--json"]
    found = json.loads(CliRunner().invoke(cli, words).stdout)
    assert found["commands"] == len(commands)
    assert [f["message"] for f in found["findings"] if f["severity"] == "error"] == []


def rank_servers(file: Path, version: str) -> list[Command]:
    """The commands of ``render --external-dp``."""
    hosts = ",".join(f"10.0.0.{number}" for number in range(1, 5))
    words = ["render", str(file), "--external-dp", "--hosts", hosts, "--nic", "eth0", "--dry-run"]
    result = CliRunner().invoke(cli, [*words, "--json"])
    texts = json.loads(result.stdout)["texts"]
    switches = release(version).switches
    sites = [site for name in texts for site in _sites(name, texts[name], switches)]
    return [
        Command(dict(site.command.env), site.command.to_argv()[1:])
        for site in sites
        if site.command.given("--data-parallel-rank")
    ]


def _sites(name: str, text: str, switches: Collection[str]) -> list[Site]:
    return read_sites(name, text, switches) if name.startswith("node") else []


@pytest.mark.slow
@pytest.mark.parametrize(("version", "fetch"), [(NEW, True), (OLD, False)])
def test_the_real_parser_accepts_what_is_planned_today(
    version: str, fetch: bool, tmp_path: Path
) -> None:
    environment = installed(version, fetch=fetch)
    asked: list[dict[str, Any]] = []
    for name in ASKED:
        file = tmp_path / f"{name}.yaml"
        plan_anew(LOADS[name], version, file)
        chip = Plan.load(file).sku[:2].upper()
        for number, command in enumerate(node_commands(file, LOADS[name].get("checkpoint"))):
            stands, _ = resolve_model(command, tmp_path, None)
            entry = {"id": f"{name} node {number}", "chip": chip}
            asked.append({**entry, "argv": stands.argv, "env": stands.env})
    # The first and the last server of a rank, where every rank has one.
    for command in rank_servers(tmp_path / "a3x4-c8.yaml", version)[::9]:
        stands, _ = resolve_model(command, tmp_path, None)
        entry = {"id": f"rank {command.argv[-1]}", "chip": "A3"}
        asked.append({**entry, "argv": stands.argv, "env": stands.env})
    # A verdict that cannot be no says nothing.
    wrong = {**asked[0], "id": "wrong", "argv": [*asked[0]["argv"], "--no-such-flag"]}
    verdicts = {
        command["id"]: (record["verdict"], record.get("message"))
        for command, record in run_commands(environment, [*asked, wrong], "A3")
    }
    assert verdicts.pop("wrong")[0] == "rejected"
    assert set(verdicts.values()) == {("accepted", None)}
