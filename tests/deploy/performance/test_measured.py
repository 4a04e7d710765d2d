"""The measurements as data, the calibration, and what the README says of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glm5_ascend.deploy.performance.effects import EFFECTS
from glm5_ascend.deploy.performance.measured import QUANTITIES, calibration, measurements
from glm5_ascend.deploy.performance.parameters import fitted
from tools import calibrate_planner, validate_planner


def test_every_row_is_complete_and_sourced() -> None:
    for name, row in measurements().items():
        assert row.source, name
        assert row.grade in ("A", "A-", "B", "C", "D"), name
        assert row.measured
        assert set(row.measured) <= set(QUANTITIES), name
        assert row.layout.dies in (8, 16, 32, 64, 96, 128, 320), name


def test_the_list_is_five_ci_rows_and_bare_kernels() -> None:
    names, operators = calibration()
    rows = [measurements()[name] for name in names]
    assert sum(row.source.startswith("vllm-ascend CI") for row in rows) == 5
    assert all(row.kind in ("step", "prefill") for row in rows if row.grade == "A-")
    assert len(operators) == 3
    assert not any(row.uncounted for row in rows)
    held_out = set(measurements()) - set(names)
    assert {"M15", "M20"} <= {name for name in held_out if measurements()[name].uncounted}


def test_what_is_fitted_is_fitted_well() -> None:
    wrong = []
    for name in calibration()[0]:
        row = measurements()[name]
        predicted = row.predict(fitted())
        wrong += [abs(predicted[key] / value - 1) for key, value in row.measured.items()]
    assert np.mean(wrong) < 0.07
    # R1 at 6144 sequences is the worst, 12 % too slow.
    assert max(wrong) < 0.16


@pytest.mark.slow
def test_the_stored_numbers_are_a_minimum() -> None:
    """No number can be moved by a tenth of its range and fit the list much better."""
    low = np.array([bound[0] for bound in calibrate_planner.BOUNDS.values()])
    high = np.array([bound[1] for bound in calibrate_planner.BOUNDS.values()])
    stored = np.array([getattr(fitted(), name) for name in calibrate_planner.BOUNDS])
    share = (stored - low) / (high - low)
    point = np.log(share / (1 - share))
    best = float(np.sum(calibrate_planner.residuals(point) ** 2))
    for axis in np.eye(len(point)):
        for sign in (-0.5, 0.5):
            tried = float(np.sum(calibrate_planner.residuals(point + sign * axis) ** 2))
            assert tried > 0.97 * best


def test_least_squares_finds_a_known_minimum() -> None:
    wanted = np.array([0.7, -1.2])

    def distance(point: np.ndarray) -> np.ndarray:
        return np.array([point[0] - wanted[0], 3 * (point[1] - wanted[1]), point.sum() + 0.5])

    found = calibrate_planner.least_squares(distance, np.zeros(2), 20)
    assert found == pytest.approx(wanted, abs=1e-3)


def test_the_readme_is_what_the_tool_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate_planner.main(["--check"]) == 0, capsys.readouterr().out


def test_held_out_rows_are_met_as_the_aim_says() -> None:
    found = validate_planner.held_out(validate_planner.errors(fitted()))
    own = [error for error in found if error.row.source.startswith("vllm-ascend CI")]
    first = [error for error in own if not error.row.values.get("blind")]
    known = [error for error in first if "assumed_elsewhere" not in error.row.values]
    assert (len(first), len(known), len(own)) == (20, 14, 31)
    assert validate_planner.mean(first) < 0.15
    assert validate_planner.mean(known) < 0.15
    # The aim of 15 % is missed with the rows added later: two of R1's prefill are 46 and 114 % off.
    assert validate_planner.mean(own) < 0.17
    for quantity in QUANTITIES:
        assert validate_planner.mean([e for e in found if e.quantity == quantity]) < 0.20


def test_what_is_said_of_unseen_rows_is_what_was_met() -> None:
    found = validate_planner.held_out(validate_planner.errors(fitted()))
    late = [error for error in found if error.row.values.get("blind")]
    first = {error.row.name: error.relative for error in validate_planner.first_met(late)}
    assert first["X04"] == pytest.approx(16.8 / 8.6154 - 1)
    changed = validate_planner.elsewhere([e for e in found if e.row.name in ("M26", "M01")])
    assert [error.relative > 0.5 for error in changed] == [False, True]


def test_effects_are_met_within_fifteen_percent_but_for_one() -> None:
    for effect in EFFECTS:
        wrong = effect.ratio(fitted()) / effect.published - 1
        if effect.name.startswith("prefix of 75 %"):
            assert 0.4 < wrong < 0.55  # listed in the README with what is known of it
        else:
            assert abs(wrong) < 0.15, effect.name


def test_the_data_names_no_row_in_the_parameters() -> None:
    text = (Path(calibrate_planner.FILE)).read_text()
    assert not any(name in text for name in measurements())
