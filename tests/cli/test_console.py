"""Progress on terminals and in log files, and the table of environment variables."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glm5_ascend import console, env
from glm5_ascend.errors import ExitCode

ROOT = Path(__file__).parent.parent.parent


class Clock:
    """``time.monotonic`` under control of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)


def test_plain_lines_come_every_ten_per_cent_or_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with console.progress("quantising", 2_000_000_000) as advance:
        for _ in range(100):  # 1 % in 0.5 s
            clock.now += 0.5
            advance(20_000_000)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[0] == "quantising: 2.00 GB"
    assert lines[1] == "quantising: 10 %, 200 MB of 2.00 GB, 40.0 MB/s, 45 s left"
    assert len(lines) == 11
    assert lines[-1] == "quantising: 2.00 GB in 50 s (40.0 MB/s)"


def test_slow_work_still_shows_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with console.progress("reading", 1_000_000) as advance:
        for _ in range(30):
            clock.now += 1
            advance(100)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 + 3 + 1
    assert "2 h 46 min left" in lines[1]


def test_a_failure_shows_no_line_of_success(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), console.progress("reading", 10):
        raise ValueError("broken")
    assert capsys.readouterr().err == "reading: 10 B\n"


def test_terminal_gets_a_bar_with_rate_and_remaining_time() -> None:
    code = (
        "from glm5_ascend.console import progress\n"
        "with progress('reading', 4_000_000) as advance:\n"
        "    for _ in range(4): advance(1_000_000)\n"
        "print('data')\n"
    )
    leader, follower = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=follower,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        check=True,
    )
    os.close(follower)
    shown = os.read(leader, 100_000).decode()
    os.close(leader)
    assert done.stdout == b"data\n"
    for word in ("reading", "100%", "4.0/4.0 MB", "/s", "0:00:00"):
        assert word in shown


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (16_140_224, "16.1 MB"), (1.5e15, "1500 TB")],
)
def test_sizes(nbytes: float, text: str) -> None:
    assert console.format_bytes(nbytes) == text


def test_variables_have_defaults_that_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in env.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
        assert env.read(variable.name) == variable.default
        if variable.choices:
            assert variable.default in variable.choices


def test_a_wrong_value_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "cuda")
    with pytest.raises(env.EnvironmentVariableError, match="GLM5_ASCEND_OP_BACKEND is 'cuda'") as e:
        env.read("GLM5_ASCEND_OP_BACKEND")
    assert e.value.exit_code is ExitCode.INPUT
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "reference")
    assert env.read("GLM5_ASCEND_OP_BACKEND") == "reference"
    monkeypatch.setenv("GLM5_ASCEND_OP_BACKEND", "")
    assert env.read("GLM5_ASCEND_OP_BACKEND") == "auto"


def test_every_variable_that_the_code_mentions_is_in_the_table() -> None:
    known = {variable.name for variable in env.VARIABLES}
    for folder in ("glm5_ascend", "ops", "quant", "deploy"):
        for file in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"GLM5_ASCEND_[A-Z_]*[A-Z]", file.read_text()):
                assert name in known, f"{file.relative_to(ROOT)} mentions {name}"
