"""Goals, tables and command line of the GPU benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools import bench_gpu
from tools.gpu_bench import report
from tools.gpu_bench.shapes import BY_NAME, Goal, Shape

SHAPE = Shape("tiny", "hadamard", "bf16", 8, goal=Goal(0.75))


def timed(contestant: str, kind: str, median: float, **more: Any) -> dict[str, Any]:
    made = {
        "date": "2026-02-01T00:00:00Z", "commit": "0123456789abcdef", "dirty": True,
        "command": "run", "card": {"driver_version": "580"}, "case": "tiny", "kernel": "hadamard",
        "title": "8 rows", "shape": {"heads": 64}, "case_dtype": "bf16", "floor_us": 20.0,
        "goal": {"most": 0.75, "over": "peer"}, "contestant": contestant, "kind": kind,
        "dtype": "bf16", "heads_computed": 0, "status": "timed", "reason": "", "median": median,
        "p20": median, "p80": median, "mode": "graph",
        "device": {"gpu": "Some card", "versions": {"torch": "2.11.0"}},
    }  # fmt: skip
    return made | more


def test_goals_compare_with_the_best_peer_of_the_run() -> None:
    ours, peer = timed("ours", "project", 30.0), timed("peer", "peer", 50.0)
    worse, torch_row = timed("worse", "peer", 90.0), timed("chain", "torch", 20.0)
    assert report.verdict([ours, peer, worse, torch_row]) == "≤ 0.75x the best peer: 0.60x, reached"
    late = timed("ours", "project", 45.0)
    assert report.verdict([late, peer]).endswith("0.90x, MISSED by 20 %")
    assert report.verdict([ours, torch_row]).endswith("no peer was timed")
    wrong = peer | {"contestant": "ours", "kind": "project", "status": "wrong", "reason": "x"}
    assert report.verdict([wrong, peer]).endswith("the project was not timed")
    floor = ours | {"goal": {"most": 1.4, "over": "floor"}, "floor_us": 20.0}
    assert report.verdict([floor]).endswith("1.50x, MISSED by 7 %")
    # Outside of a graph the launches do not count where the kernels' time is known.
    loose = ours | {"mode": "stream", "median": 400.0, "kernels_us": 40.0}
    assert report.verdict([loose, peer]).endswith("0.80x, MISSED by 7 %")


def test_the_table_says_what_was_not_timed() -> None:
    ours, peer = timed("ours", "project", 30.0), timed("peer", "peer", 50.0, package="peer 1.0")
    absent = peer | {"contestant": "other", "status": "absent", "reason": "no wheel"}
    text = report.markdown([ours, peer, absent])
    assert "| `tiny` | bf16 | 30.0 | 50.0 peer | – | 0.60x |" in text
    assert "- `tiny`, other: absent, no wheel" in text
    assert "Some card (driver_version 580), 2026-02-01, peer 1.0, torch 2.11.0" in text
    assert "commit 0123456789ab with local changes" in text
    shown = "\n".join(report.lines([ours, peer, absent]))
    assert "absent: no wheel" in shown
    assert "0.60x peer" in shown
    assert "goal ≤ 0.75x the best peer: 0.60x, reached" in shown


def test_without_rows_every_goal_says_not_yet_measured() -> None:
    text = report.markdown([])
    assert text.count("not yet measured") == 13
    assert "Not yet measured" in text
    assert "| `mlapo-w8a8-1` | 14.5 | ≤ 1.40x floor | not yet measured |" in text


def test_the_committed_block_shows_the_last_run() -> None:
    assert bench_gpu.main(["--check"]) == 0


def test_rows_are_written_as_they_come_and_survive_ctrl_c(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = {"case": "a", "title": "t", "contestant": "p", "status": "absent", "reason": "none",
           "kind": "peer", "floor_us": 1.0, "goal": None}  # fmt: skip

    def rows() -> Iterator[dict[str, Any]]:
        yield row
        assert len(file.read_text().splitlines()) == 1
        yield row | {"case": "b"}
        raise KeyboardInterrupt

    with file.open("a") as out:
        every, interrupted = bench_gpu.record(rows(), {"date": "d"}, out)
    assert interrupted
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert [r["case"] for r in kept] == [r["case"] for r in every] == ["a", "b"]
    assert bench_gpu.last_run(file) == kept
    assert bench_gpu.last_run(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        ("import sys; sys.exit(3)", "no CUDA device was found"),
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_without_a_device_the_command_says_so(
    probe: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_gpu, "_PROBE", probe)
    assert bench_gpu.main(["--only", "mlapo"]) == 5
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert hint.startswith("hint: ")


def test_shapes_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert {s.kernel for s in bench_gpu.chosen("mlapo", [])} == {"mlapo"}
    assert bench_gpu.chosen(None, ["hadamard-*"]) == [BY_NAME["hadamard-4096"]]
    assert bench_gpu.main(["--list", "--case", "mlapo-w8a8-1"]) == 0
    assert "floor 14.5 us" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        bench_gpu.main(["--case", "nothing"])
    assert ended.value.code == 2
