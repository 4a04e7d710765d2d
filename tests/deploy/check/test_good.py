"""Good commands have no finding of severity error; verdicts agree with what the engines said."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.deploy.check.examine import examine
from tests.deploy.check.cases import contexts
from tools.oracle.corpus import corpus

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "tools" / "results"
HARDWARE = {"A2": "a2:4", "A3": "a3:4", "A5": "950dt:4"}
# What an engine accepts and then fails with; the oracle starts nothing.
AT_RUN_TIME = {"hccl-buffer", "memory", "dies-server", "pd-sizes-missing"}
# Layouts in use, in the spelling of a release: ids of tools/oracle/commands.toml.
GOOD = {
    "0.30.0rc2": (
        "a3-1-w4a8",
        "a3-2-w8a8c8-node0",
        "a3-2-w8a8c8-node1",
        "a3-2-dp2tp16",
        "a3-1-w4a8c8",
        "a2-2-w4a8",
        "a3-1-1m",
        "pd-prefill",
        "pd-prefill-pp",
        "muls-add-nested",
        "c8-new",
        "eplb-with-env",
    ),
    "0.23.0.post1": (
        "a3-2-w8a8c8-0.23",
        "a3-2-dp2tp16",
        "a2-2-w4a8",
        "pd-prefill",
        "muls-add-nested",
        "eplb-with-env",
    ),
}
ENTRIES = {entry["id"]: entry for entry in corpus()}


def rows(name: str) -> list[dict[str, Any]]:
    text = (RESULTS / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def errors(version: str, name: str) -> set[str]:
    entry = ENTRIES[name]
    found = examine(contexts(entry["line"], version, HARDWARE[entry["chip"]]))
    return {finding.rule for finding in found if finding.severity == "error"}


@pytest.mark.parametrize(("version", "name"), [(v, n) for v, names in GOOD.items() for n in names])
def test_good_commands_have_no_error(version: str, name: str) -> None:
    assert errors(version, name) == set()


# quantization-missing needs a checkpoint; test_checkpoint.py has it.
ORACLE = [r for r in rows("strict_oracle_commands.jsonl") if r["id"] != "quantization-missing"]


@pytest.mark.parametrize("row", ORACLE, ids=[f"{r['release']} {r['id']}" for r in ORACLE])
def test_what_the_engine_rejects_is_an_error_and_only_that(row: dict[str, Any]) -> None:
    late = AT_RUN_TIME | ({"fused-mc2-value"} if row["release"].startswith("0.23") else set())
    found = errors(row["release"], row["id"])
    assert bool(found - late) == (row["verdict"] != "accepted"), found


RECIPES: list[dict[str, Any]] = tomllib.loads(
    (ROOT / "deploy" / "check" / "recipes.toml").read_text(encoding="utf-8")
)["recipe"]


def test_recipes_that_the_engine_rejects_are_bad() -> None:
    judged = {(row["release"], row["id"]): row for row in RECIPES}
    seen = 0
    for row in rows("strict_oracle_recipes.jsonl"):
        recipe = judged.get((row["release"], row["id"]))
        if recipe is None or row["verdict"] not in ("accepted", "rejected"):
            continue
        seen += 1
        refused = set(recipe["rules"]) - {*AT_RUN_TIME, *_OF_DEPLOYMENTS}
        assert bool(refused) == (row["verdict"] == "rejected"), (row["id"], recipe["rules"])
    assert seen > 70


_OF_DEPLOYMENTS = ("kv-port-transport", "peers-caches", "c8-dcp-long", "peers-dp-sum")


def test_recipes_say_what_was_found_by_hand() -> None:
    newest = [r for r in RECIPES if r["release"] == "0.30.0rc2" and r["id"].startswith("GLM")]
    misplaced = [r["id"] for r in newest if "key-misplaced" in r["rules"]]
    assert (len(newest), len(misplaced)) == (44, 22)
    by_id = {recipe["id"]: recipe for recipe in newest}
    # A documented 36000 and a used 30000; a log asked for 600 MiB where the recipe has 256.
    assert "kv-port-transport" in by_id["GLM5.2 #6"]["rules"]
    assert "hccl-buffer" in by_id["GLM5.2 #10"]["rules"]
    # int8 latent cache on decode alone.
    assert {"GLM5.2 #8", "GLM5.2 #9"} == {
        recipe["id"] for recipe in newest if "peers-caches" in recipe["rules"]
    }
    for recipe in RECIPES:
        assert (recipe["verdict"] == "bad") == bool(recipe["rules"])
        assert len(recipe["why"]) == len(recipe["rules"])
