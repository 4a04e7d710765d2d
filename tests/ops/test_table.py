"""``glm5-ascend ops``: the table of operators and backends."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.ops import dispatch
from glm5_ascend.ops.dispatch import Availability
from glm5_ascend.ops.table import Table


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["ops", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_text_names_every_operator_and_every_refusal() -> None:
    text = run()
    for row in dispatch.availability():
        line = next(x for x in text.splitlines() if x.split(" ")[0] == row.operator)
        place = text.splitlines()[0].index(row.backend)
        assert line[place:].startswith("-" if row.reason else "yes"), line
        assert row.reason in text
        assert row.hint in text


def test_json_is_one_document_with_all_rows() -> None:
    document = json.loads(run("--json"))
    assert document["schema"] == 1
    assert document["auto_on_cpu"] == dispatch.default("cpu")
    rows = {(r["operator"], r["backend"]): r for r in document["backends"]}
    assert len(rows) == len(dispatch.OPERATORS) * len(dispatch._BACKENDS)
    for row in dispatch.availability():
        assert rows[row.operator, row.backend] == {
            "operator": row.operator,
            "backend": row.backend,
            "available": not row.reason,
            "reason": row.reason or None,
            "hint": row.hint or None,
        }


def test_a_refusal_of_some_operators_names_them() -> None:
    rows = [
        Availability("a", "reference", "", ""),
        Availability("b", "reference", "", ""),
        Availability("a", "cpu", "no compiler", "install one"),
        Availability("b", "cpu", "", ""),
        Availability("a", "triton", "no package", "pip"),
        Availability("b", "triton", "no package", "pip"),
    ]
    lines = Table(rows, "cpu").as_text().splitlines()
    assert lines[1:3] == ["a  yes        -    -", "b  yes        yes  -"]
    assert lines[-2:] == ["cpu (a): no compiler; install one", "triton: no package; pip"]


@pytest.mark.parametrize("arguments", [["ops", "nonsense"], ["ops", "--nonsense"]])
def test_wrong_usage_points_to_the_help(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments, prog_name="glm5-ascend")
    assert result.exit_code == 2
    assert "glm5-ascend ops --help" in result.stderr
