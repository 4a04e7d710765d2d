"""What the supervisor of the GPU benchmark makes of workers that fault, hang or run out of time."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tools.gpu_problems import HADAMARD
from tools.gpu_bench.shapes import BY_NAME
from tools.gpu_bench.supervise import Settings, WorkerError, supervise

ONE, TWO = "attention-decode-fp8-b8-h16", "hadamard-4096"
SHAPES = [BY_NAME[ONE], BY_NAME[TWO]]
WORKER = Path(__file__).with_name("gpu_worker.py")
DEVICE = {"event": "device", "gpu": "H200"}


def row(case: str, contestant: str, status: str = "timed", **more: Any) -> dict[str, Any]:
    return {"case": case, "contestant": contestant, "kind": "peer", "status": status} | more


def stage(case: str, contestant: str, name: str = "time") -> dict[str, Any]:
    return {"event": "stage", "stage": name, "row": row(case, contestant, "")}


def came(case: str, *contestants: str) -> list[dict[str, Any]]:
    """A case that went well."""
    rows = [{"event": "row", "row": row(case, name)} for name in contestants]
    return [{"event": "case", "case": case}, *rows, {"event": "done", "case": case}]


class Play:
    """Runs the supervisor against scripted workers, and reads what they were told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *scripts: list[dict[str, Any]], **settings: Any) -> list[dict[str, Any]]:
        for number, script in enumerate(scripts):
            (self.folder / f"{number}.json").write_text(json.dumps(script))
        command = sys.executable, str(WORKER), str(self.folder)
        given = {"budget": 60.0, "patience": 20.0} | settings
        made = Settings(seed=1, peers="none", command=command, **given)
        return list(supervise(SHAPES, made))

    def told(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{number}.options").read_text())
        return found

    @property
    def processes(self) -> int:
        return len(list(self.folder.glob("*.options")))


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


def brief(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(r["case"], r["contestant"], r["status"]) for r in rows]


def test_rows_of_a_good_run(play: Play) -> None:
    rows = play.run([DEVICE, *came(ONE, "a", "b"), *came(TWO, "a")])
    assert brief(rows) == [(ONE, "a", "timed"), (ONE, "b", "timed"), (TWO, "a", "timed")]
    assert {r["device"]["gpu"] for r in rows} == {"H200"}
    assert play.processes == 1
    assert [s["name"] for s in play.told(0)["shapes"]] == [ONE, TWO]


def test_a_kernel_that_faults_is_a_row_and_the_others_go_on(play: Play) -> None:
    absent = {"event": "row", "row": row(ONE, "gone", "absent")}
    first = [DEVICE, {"event": "case", "case": ONE}, absent, stage(ONE, "bad"), {"do": "die"}]
    rows = play.run(first, [DEVICE, *came(ONE, "good"), *came(TWO, "a")])
    assert [(r["contestant"], r["status"]) for r in rows] == [
        ("gone", "absent"), ("bad", "failed"), ("good", "timed"), ("a", "timed"),
    ]  # fmt: skip
    assert "-11" in rows[1]["reason"]
    # What has a row is left out the second time.
    assert play.told(1)["omit"] == {ONE: ["gone", "bad"]}


def test_a_fault_in_capture_is_tried_once_more_without_a_graph(play: Play) -> None:
    fault = [{"event": "case", "case": ONE}, stage(ONE, "bad", "capture"), {"do": "die"}]
    rows = play.run(fault, fault, [*came(ONE, "good"), *came(TWO, "a")])
    assert brief(rows)[0] == (ONE, "bad", "failed")
    assert play.told(1)["streams"] == {ONE: ["bad"]}
    assert play.told(1)["omit"] == {}
    assert play.told(2)["omit"] == {ONE: ["bad"]}
    assert len(rows) == 3


def test_a_hang_is_stopped(play: Play) -> None:
    first = [{"event": "case", "case": ONE}, stage(ONE, "slow"), {"do": "hang"}]
    rows = play.run(first, [*came(ONE, "good"), *came(TWO, "a")], patience=1.0)
    assert brief(rows)[0] == (ONE, "slow", "failed")
    assert "nothing was heard of it for 1 s" in rows[0]["reason"]
    assert len(rows) == 3


def test_a_spoiled_device_gets_a_new_process(play: Play) -> None:
    own = {"event": "row", "row": row(ONE, "bad", "failed", reason="illegal address")}
    first = [{"event": "case", "case": ONE}, stage(ONE, "bad"), own, {"do": "exit", "code": 3}]
    rows = play.run(first, [*came(ONE, "good"), *came(TWO, "a")])
    assert [(r["contestant"], r["status"]) for r in rows] == [
        ("bad", "failed"), ("good", "timed"), ("a", "timed"),
    ]  # fmt: skip
    assert rows[0]["reason"] == "illegal address"


@pytest.mark.parametrize("own_row", [True, False])
def test_inputs_that_cannot_be_made_end_their_case_only(play: Play, own_row: bool) -> None:
    first = [{"event": "case", "case": ONE}, stage(ONE, "inputs", "set up")]
    if own_row:
        first += [{"event": "row", "row": row(ONE, "inputs", "failed", reason="memory")}]
    rows = play.run([*first, {"do": "exit", "code": 3}], came(TWO, "a"))
    assert brief(rows) == [(ONE, "inputs", "failed"), (TWO, "a", "timed")]


def test_the_budget_ends_a_run_whatever_is_at_work(play: Play) -> None:
    begin = time.monotonic()
    script = [{"event": "case", "case": ONE}, stage(ONE, "slow"), {"do": "hang"}]
    rows = play.run(script, budget=1.0)
    assert time.monotonic() - begin < 10
    assert brief(rows) == [(ONE, "all", "not run"), (TWO, "all", "not run")]
    assert rows[0]["reason"] == "the budget of 1 s was used up"


def test_cases_for_which_a_worker_has_no_time_are_rows(play: Play) -> None:
    rows = play.run(came(ONE, "a"))
    assert brief(rows) == [(ONE, "a", "timed"), (TWO, "all", "not run")]


def test_a_worker_that_dies_between_two_cases_goes_on(play: Play) -> None:
    rows = play.run([*came(ONE, "a"), {"do": "die"}], came(TWO, "a"))
    assert brief(rows) == [(ONE, "a", "timed"), (TWO, "a", "timed")]


def test_a_line_cut_off_by_a_kill_is_no_event(play: Play) -> None:
    first = [{"event": "case", "case": ONE}, stage(ONE, "bad"), {"do": "noise"}]
    rows = play.run(first, [*came(ONE, "good"), *came(TWO, "a")])
    assert brief(rows)[0] == (ONE, "bad", "failed")


def test_a_worker_that_never_begins_is_an_error(play: Play) -> None:
    with pytest.raises(WorkerError, match="code 7 before it came to a case"):
        play.run([DEVICE, {"do": "exit", "code": 7}])


def test_leaving_early_ends_the_worker(play: Play, tmp_path: Path) -> None:
    script = [*came(ONE, "a"), stage(TWO, "slow"), {"do": "hang"}]
    (tmp_path / "0.json").write_text(json.dumps(script))
    command = sys.executable, str(WORKER), str(tmp_path)
    rows = supervise(SHAPES, Settings(60.0, 1, "none", command=command))
    assert next(rows)["contestant"] == "a"
    begin = time.monotonic()
    rows.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begin < 5


def test_the_real_worker_on_this_cpu() -> None:
    settings = Settings(120.0, 5, "none", seconds=0.0, device="cpu", backend="reference")
    rows = list(supervise(HADAMARD, settings))
    assert [(r["kind"], r["status"]) for r in rows] == [
        ("project", "timed"), ("call", "timed"), ("torch", "timed"),
    ]  # fmt: skip
    assert {r["device"]["gpu"] for r in rows} == {"none"}
    assert {r["seed"] for r in rows} == {5}
