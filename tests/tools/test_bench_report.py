"""Goals and tables that the benchmark makes of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.bench import cases, report
from tools.bench.goals import verdicts
from tools.bench.peaks import arithmetic_us, ceiling, floor_us

README = "# Title\n\n<!-- generated: ops -->\nold\n<!-- end -->\n\nrest\n"


def row(case: str, kind: str, median: float, **more: Any) -> dict[str, Any]:
    made = {
        "date": "2026-02-01T00:00:00Z", "commit": "0123456789abcdef", "dirty": True,
        "hardware": "2 x Some CPU", "isa": "avx512", "versions": {"torch": "2.13.0"},
        "command": "python -m tools.bench_ops", "op": "x", "case": case, "title": "what it is",
        "contestant": kind, "kind": kind, "threads": 1, "flops": {"bf16": 2.35e8}, "bytes": 1e6,
        "floor_us": 1000.0, "arithmetic_us": 1000.0, "load_average": 1.02, "other_cores": 0.01,
        "stolen_cores": 0.0, "unit": "us", "median": median, "least": median - 2,
        "p20": median - 1, "p80": median + 1, "n": 9, "repeats": 1,
    }  # fmt: skip
    return made | more


ROWS = [
    row("attention-bf16-1q", "project", 1350.0),
    row("attention-bf16-1q", "kernel", 1300.0),
    row("attention-bf16-1q", "torch", 1900.0),
    row("attention-bf16-1q", "torch", 1800.0, contestant="better"),
    row("attention-bf16-1q", "vllm", 6000.0),
    row("attention-bf16-1q", "limit", 330.0, contestant="peak", rate=235.4, rate_unit="GOP/s"),
    row("mlapo-8", "project", 1100.0),
    row("mlapo-8", "library", 1500.0),
    row("mlapo-8", "library", 900.0, contestant="faster"),
    row("mlapo-8", "pass", 50.0),
    row("threads-mlapo-8", "project", 1100.0, ceiling=1.96),
    row("threads-mlapo-8", "project", 550.0, threads=2),
]


def test_goals_are_judged_against_the_best_peer() -> None:
    found = {(v.case, v.goal): v for v in verdicts(ROWS)}
    reached = {key: (v.measured, v.reached) for key, v in found.items()}
    assert reached == {
        ("attention-bf16-1q", "kernel's share of the bf16 peak ≥ 70.0 %"): ("76.9 %", True),
        ("attention-bf16-1q", "kernel's share of the bf16 peak, aim ≥ 80.0 %"): ("76.9 %", False),
        ("attention-bf16-1q", "never slower than torch eager ≥ 1.00x"): ("1.33x", True),
        ("mlapo-8", "time over its library GEMMs plus one pass ≤ 1.10x"): ("1.16x", False),
        ("threads-mlapo-8", "two threads over one ≥ 1.80x"): ("2.00x of 1.96x possible", True),
    }
    missed = found["mlapo-8", "time over its library GEMMs plus one pass ≤ 1.10x"]
    assert str(missed).endswith("measured 1.16x; MISSED by 5.0 %")


def test_a_large_margin_is_a_factor() -> None:
    rows = [row("topk-random-128k", "project", 10.0), row("topk-random-128k", "torch", 500.0)]
    assert [v.by for v in verdicts(rows)] == ["reached by a factor of 2.5"]


def test_goals_without_their_rows_are_left_out() -> None:
    assert verdicts([row("attention-bf16-1q", "torch", 5.0)]) == []
    unknown = row("attention-bf16-1q", "kernel", 5.0, arithmetic_us=None, floor_us=None)
    assert verdicts([unknown]) == []


def test_floors_are_the_larger_of_arithmetic_and_memory() -> None:
    flops, rates = {"int8": 470e6, "bf16": 235e6}, {"int8": 470.0, "bf16": 235.0}
    assert arithmetic_us(flops, rates) == pytest.approx(2000)
    assert floor_us(flops, 100e6, rates, 20.0) == pytest.approx(5000)
    assert floor_us(flops, 1e6, rates, 20.0) == pytest.approx(2000)
    assert floor_us({}, 1e6, {}, 20.0) == pytest.approx(50)


def test_two_threads_are_held_against_what_the_machine_can_do() -> None:
    one, two = {"int8": 470.0, "dram": 25.0}, {"int8": 940.0, "dram": 30.0}
    flops = {"int8": 470e6}
    assert ceiling(1000, flops, 1e6, one, two, "dram") == pytest.approx(2)
    # 24 MB at 30 GB/s take 800 us, which two threads cannot go below.
    assert ceiling(1000, flops, 24e6, one, two, "dram") == pytest.approx(1.25)


def test_terminal_lines_go_from_fast_to_slow_with_the_limits_last() -> None:
    first, heads, *lines = report.lines(ROWS[:6])
    assert first == "attention-bf16-1q: what it is"
    assert heads.split()[:4] == ["median", "p20", "p80", "least"]
    assert [line.split()[0] for line in lines] == [
        "kernel",
        "project",
        "better",
        "torch",
        "vllm",
        "peak",
    ]
    assert lines[1].endswith("174.1   74 %  1.35x")
    assert lines[-1].endswith("235.4 GOP/s")


def test_readme_shows_the_last_run_and_check_notices_another(tmp_path: Path) -> None:
    readme, file = tmp_path / "README.md", tmp_path / "rows.jsonl"
    assert report.check(readme, file) == ["rows.jsonl does not exist: run without options"]
    old = [r | {"date": "2026-01-01T00:00:00Z", "median": 1.0} for r in ROWS]
    file.write_text("".join(json.dumps(r) + "\n" for r in (*old, *ROWS)))
    readme.write_text(README)
    assert report.check(readme, file) == [
        "README.md does not show the last rows of rows.jsonl: run with --render"
    ]
    readme.write_text(report.rendered(README, report.markdown(ROWS)))
    assert report.check(readme, file) == []
    text = readme.read_text()
    line = "| `attention-bf16-1q`: what it is | 1,350 [1,349, 1,351] | 1,800 [1,799, 1,801] | – |"
    assert line in text
    assert "| 1.16x | MISSED by 5.0 % |" in text
    for part in ("peak 235 GOP/s", "2026-02-01", "with local changes", "rest"):
        assert part in text
    assert "2026-01-01" not in text


def test_a_readme_without_the_block_is_refused() -> None:
    with pytest.raises(SystemExit, match="generated: ops"):
        report.rendered("# Title\n", "table\n")


def test_cases_are_chosen_by_pattern_and_threads(capsys: pytest.CaptureFixture[str]) -> None:
    every = [case.name for case in cases.every(compiled=False)]
    assert len(every) == len(set(every))
    names = [case.name for case in cases.chosen(["mlapo-*"], None, 2, compiled=False)]
    assert names == ["mlapo-1", "mlapo-8", "mlapo-128"]
    two = cases.chosen([], 2, 2, compiled=False)
    assert all(case.scaling for case in two)
    one = cases.chosen([], 1, 2, compiled=False)
    assert len(one) + len(two) == len(every)
    assert [c.name for c in cases.chosen([], None, 1, compiled=False)] == [c.name for c in one]
    assert "two threads are left out" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no case matches"):
        cases.chosen(["nothing"], None, 2, compiled=False)
    with pytest.raises(SystemExit, match="two threads need two"):
        cases.chosen([], 2, 1, compiled=False)
