"""What users reported: every row whose cause is in the command or the release is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glm5_ascend.deploy.check.examine import examine, mend_all
from glm5_ascend.deploy.check.rule import rules
from glm5_ascend.verify.rules import RULES as VERIFY_RULES
from tests.deploy.check.cases import contexts
from tests.support.reports import reports

ROWS = reports()
CHECKED = [row for row in ROWS if row["by"] == "check"]


def found_by(row: dict[str, Any]) -> list[Any]:
    return contexts(row["command"], row.get("engine", "0.30"), row.get("hw"))


@pytest.mark.parametrize("row", CHECKED, ids=[row["id"] for row in CHECKED])
def test_check_finds_the_cause(row: dict[str, Any]) -> None:
    assert set(row["rules"]) <= {finding.rule for finding in examine(found_by(row))}


FIXED = [row for row in CHECKED if row.get("fixed")]


@pytest.mark.parametrize("row", FIXED, ids=[row["id"] for row in FIXED])
def test_fix_removes_it_and_leaves_no_error(row: dict[str, Any]) -> None:
    before = found_by(row)
    after = [replace(old, command=new) for old, new in zip(before, mend_all(before), strict=True)]
    left = examine(after)
    assert not set(row["rules"]) & {finding.rule for finding in left}
    assert [finding for finding in left if finding.severity == "error"] == []


def test_every_mark_has_its_tool() -> None:
    for row in ROWS:
        if set(row["marks"]) & {"C", "V"} and row["by"] != "check":
            assert row["by"] == "verify", row["id"]
        if row["by"] == "check":
            assert set(row["rules"]) <= set(rules()), row["id"]
        if row["by"] == "verify":
            assert set(row["rules"]) <= set(VERIFY_RULES), row["id"]
        assert (row["by"] == "nothing") == (row["marks"] == "")
    assert len({row["number"] for row in ROWS}) == 51
