"""The table of decode steps: relations to its first row, and where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import decode_report
from tools.results_table import OPS_SPEED as README
from tools.results_table import last_run
from tools.time_decode_ops import Clock, Steps, llama_rate


def row(backend: str, operators: float, rate: float, llama: Any = "none here") -> dict[str, Any]:
    return {
        "backend": backend, "operators_us": operators, "tokens_per_second": rate,
        "checkpoint": "W4A8", "context": 4000, "dtype": "float32", "clock": "wall", "steps": 99,
        "same": f"{backend}: all 33 tokens are the same", "llama_cpp": llama,
        "versions": {"torch": "2.13"}, "hardware": "a machine", "date": "2026-11-30T00:00:00Z",
        "commit": "0123456789abcdef", "dirty": False, "command": "the command",
    }  # fmt: skip


def test_relations() -> None:
    text = decode_report.markdown([row("reference", 26_500, 20), row("cpu", 5_830, 55)])
    assert "| reference | 26.50 ms | 1.000 | 20.0 | 1.00x | all 33 tokens are the same |" in text
    assert "| cpu | 5.83 ms | 0.220 | 55.0 | 2.75x | all 33 tokens are the same |" in text
    assert "not measured: none here" in text
    assert "| llama.cpp | – | – | 71.5 | – | – |" in decode_report.markdown(
        [row("cpu", 1, 2, 71.5)]
    )


def test_rows_are_appended_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme, file = tmp_path / "README.md", tmp_path / "rows.jsonl"
    readme.write_text("a\n<!-- generated: decode -->\n<!-- end -->\nb\n")
    monkeypatch.setattr(decode_report, "README", readme)
    decode_report.record(["the", "command"], [row("reference", 2000, 1), row("cpu", 1000, 2)], file)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [r["backend"] for r in rows] == ["reference", "cpu"]
    assert "| cpu | 1.00 ms | 0.500 | 2.0 | 2.00x |" in readme.read_text()


def test_readme_shows_the_last_rows() -> None:
    assert decode_report.markdown(last_run(decode_report.ROWS)) in README.read_text("utf-8")


def test_clock_keeps_steps_of_one_token() -> None:
    class Scheduled:
        def __init__(self, tokens: int) -> None:
            self.total_num_scheduled_tokens = tokens

    clock, steps = Clock("wall"), Steps()
    clock.count(steps)
    operator = clock.timed("norm", lambda: sum(range(1000)))
    step = clock.step(lambda scheduled: [operator() for _ in range(3)])
    for tokens in (512, 1, 1, 1):
        step(Scheduled(tokens))
    assert len(steps.operators) == len(steps.models) == 3
    assert len(steps.tokens) == 2
    assert clock.calls["norm"] == 3
    assert all(0 < sum(o.values()) < m for o, m in zip(steps.operators, steps.models, strict=True))
    assert 0 < steps.rate < 1e9 / min(steps.models)


def test_llama_says_why_it_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert llama_rate(None, 10, 2) == "llama-bench is not on PATH"
    tool = tmp_path / "llama-bench"
    tool.write_text("#!/bin/sh\necho '[{\"avg_ts\": 12.5}]'\n")
    tool.chmod(0o755)
    assert llama_rate(None, 10, 2) == "--gguf names no file for it"
    assert llama_rate(tmp_path / "x.gguf", 10, 2) == 12.5
    tool.write_text("#!/bin/sh\necho 'error: unknown architecture' >&2\nexit 1\n")
    why = "llama-bench cannot run x.gguf: error: unknown architecture"
    assert llama_rate(tmp_path / "x.gguf", 10, 2) == why
