"""The nightly run's rows: what tests record is added up per kernel, other tests are left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tools import nightly


def _report(nodeid: str, outcome: str, *properties: tuple[str, object], when: str = "call") -> Any:
    return SimpleNamespace(
        nodeid=nodeid, outcome=outcome, user_properties=list(properties), when=when
    )


def test_rows_add_up_what_each_kernels_tests_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "provenance", lambda command: {"source": "measured"})
    tally = nightly.Tally()
    file = "tests/ops/ascendc/test_mlapo.py"
    tally.pytest_runtest_logreport(_report(f"{file}::a[1]", "passed", ("launches", 201)))
    tally.pytest_runtest_logreport(_report(f"{file}::a[2]", "passed", ("launches", 201)))
    tally.pytest_runtest_logreport(_report(f"{file}::b", "failed", ("mutants", 7)))
    tally.pytest_runtest_logreport(_report(f"{file}::b", "passed", when="setup"))
    tally.pytest_runtest_logreport(_report("tests/ops/emulator/test_checks.py::c", "passed"))
    (row,) = nightly.rows(tally, 200, 1.6, ["x"])
    assert row == {
        "source": "emulated",
        "seeds": 200,
        "seconds": 2,
        "kernel": "mlapo",
        "tests": 3,
        "passed": 2,
        "failed": 1,
        "launches": 402,
        "mutants": 7,
    }


def test_seeds_must_be_positive(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        nightly.main(["--seeds", "0"])
    assert stop.value.code == 2
    assert "--seeds must be positive" in capsys.readouterr().err
