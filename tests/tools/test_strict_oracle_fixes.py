"""Repaired commands: the recorded verdicts are of what ``--fix`` prints now, and say accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.test_strict_oracle_rerun import installed, same
from tools.oracle.fixes import fixes
from tools.oracle.record import FIXES, read_rows
from tools.oracle.trials import Record, run_commands
from tools.oracle.words import resolve_model

NEW, OLD = "0.30.0rc2", "0.23.0.post1"
# Asked again: a moved key, a respelt cache, a scheduler, wrong sizes, a flag, and broken JSON.
ASKED = (
    "muls-add-top",
    "c8-new",
    "sparse-c8-old",
    "balance-on-decode",
    "flag-one-dash",
    "json-broken",
)
ROWS = read_rows(FIXES)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_recorded_commands_are_those_of_today(version: str) -> None:
    made = {row["id"]: row for row in fixes(version)}
    recorded = {row["id"]: row for row in ROWS if row["release"] == version}
    assert set(made) == set(recorded)
    for name, row in made.items():
        assert recorded[name]["line"] == row["line"], name
        assert recorded[name]["left"] == row["left"], name
    assert len(made) > 50


def test_a_command_without_errors_left_is_accepted() -> None:
    repaired = [row for row in ROWS if not row["left"]]
    assert len(repaired) > 100
    assert [row["id"] for row in repaired if row["verdict"] != "accepted"] == []
    assert sum(row["id"].startswith("report ") for row in repaired) >= 2 * 18


@pytest.mark.slow
@pytest.mark.parametrize(("version", "fetch"), [(NEW, True), (OLD, False)])
def test_six_are_asked_again(version: str, fetch: bool, tmp_path: Path) -> None:
    environment = installed(version, fetch=fetch)
    asked: list[Record] = []
    for row in fixes(version):
        if row["id"] in ASKED:
            command, _ = resolve_model(row["command"], tmp_path, None)
            asked.append({"id": row["id"], "argv": command.argv, "env": command.env})
    assert len(asked) == len(ASKED)
    for command, record in run_commands(environment, asked, "A3"):
        row = next(r for r in ROWS if (r["release"], r["id"]) == (version, command["id"]))
        assert record["verdict"] == "accepted"
        same(row, record)
