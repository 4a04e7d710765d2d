"""Repaired commands: the recorded verdicts are of what ``--fix`` prints now, and say accepted.

Six of them are asked again in ``test_strict_oracle_rerun.py``.
"""

from __future__ import annotations

import pytest

from tools.oracle.fixes import fixes
from tools.oracle.record import FIXES, read_rows

NEW, OLD = "0.30.0rc2", "0.23.0.post1"
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
