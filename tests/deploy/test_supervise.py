"""Children, their process trees and their ends, shown on dummies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glm5_ascend.deploy.health import healthy
from glm5_ascend.deploy.preflight import free_port
from glm5_ascend.deploy.supervise import (
    Child,
    caught_signals,
    child_failed,
    describe_exit,
    wait_until_ready,
)
from glm5_ascend.errors import ExitCode, Unhealthy
from tests.deploy.processes import running, until

DUMMY = Path(__file__).with_name("dummy.py")
Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start dummies; whatever a test leaves behind is killed."""
    started: list[Child] = []

    def dummy(*words: str, processes: int = 1) -> Child:
        with (tmp_path / "log").open("wb") as log:
            child = Child([sys.executable, "-S", str(DUMMY), *words], os.environ, log)
        started.append(child)
        until(lambda: "dummy engine" in (tmp_path / "log").read_text())
        until(lambda: len(child.members()) >= processes)
        return child

    yield dummy
    for child in started:
        child.stop(0.0, hurry=lambda: True)


def test_stop_ends_a_plain_child_at_once(start: Start) -> None:
    child = start()
    began = time.monotonic()
    child.stop(grace_s=20)
    assert time.monotonic() - began < 5
    assert child.members() == []
    assert child.wait(0) == -signal.SIGTERM


def test_stop_escalates_to_kill_for_the_whole_tree(start: Start) -> None:
    child = start("stubborn", "children", processes=3)
    child.stop(grace_s=0.6)
    assert child.members() == []
    assert child.wait(0) == -signal.SIGKILL


def test_what_a_dead_child_leaves_behind_is_ended_too(start: Start) -> None:
    child = start("orphan", processes=2)
    assert child.wait(5) == 0
    assert len(child.members()) == 2
    child.stop(grace_s=0.6)
    assert child.members() == []


def test_hurry_skips_the_grace(start: Start) -> None:
    child = start("stubborn")
    began = time.monotonic()
    child.stop(grace_s=60, hurry=lambda: True)
    assert time.monotonic() - began < 5
    assert child.members() == []


def test_the_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """The parent is killed with SIGKILL and can clean nothing up."""
    code = (
        "import os, sys, time\n"
        "from glm5_ascend.deploy.supervise import Child\n"
        "print(Child(sys.argv[1:], os.environ, 2).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, sys.executable, "-S", str(DUMMY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        pid = int(parent.stdout.readline())
        assert b"dummy engine" in parent.stderr.readline()
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
    until(lambda: not running(pid))


def test_ready_when_health_answers(start: Start) -> None:
    port = free_port()
    child = start(f"http={port}")
    assert wait_until_ready(child, f"http://127.0.0.1:{port}", 20) is None
    assert healthy(f"http://127.0.0.1:{port}")


def test_health_ignores_proxy_variables(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    child = start(f"http={port}")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert wait_until_ready(child, f"http://127.0.0.1:{port}", 20) is None


def test_early_death_returns_the_exit_code(start: Start) -> None:
    child = start("exit=3", processes=0)
    assert wait_until_ready(child, f"http://127.0.0.1:{free_port()}", 20) == 3


@pytest.mark.parametrize("answer", ["sick", "other"])
def test_no_good_answer_in_time_is_unhealthy(answer: str, start: Start) -> None:
    port = free_port()
    child = start(f"{answer}={port}")
    with pytest.raises(Unhealthy, match=r"does not answer at .*/health after 1 s") as caught:
        wait_until_ready(child, f"http://127.0.0.1:{port}", 1)
    assert caught.value.exit_code == ExitCode.UNHEALTHY
    assert child.wait(0) is None


def test_progress_lines_give_elapsed_seconds(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm5_ascend.deploy.supervise.PROGRESS_S", 0.4)
    lines: list[str] = []
    with pytest.raises(Unhealthy):
        wait_until_ready(start(), f"http://127.0.0.1:{free_port()}", 1.5, say=lines.append)
    assert 2 <= len(lines) <= 3
    assert lines[1] == "waiting for the engine: 1 s"


def test_waiting_ends_when_stopped(start: Start) -> None:
    child = start()
    assert wait_until_ready(child, "http://127.0.0.1:9", 600, stopped=lambda: True) is None


def test_a_killed_child_is_explained() -> None:
    assert describe_exit(2) == "exit code 2"
    error = child_failed("the engine", -9, "read the log")
    assert error.exit_code == ExitCode.CHILD
    assert error.message == "the engine ended with signal 9 (SIGKILL)"
    assert "memory" in error.hint
    assert child_failed("the engine", -11, "read the log").hint == "read the log"


def test_signals_are_collected_and_handlers_restored() -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with caught_signals() as caught:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert caught == [signal.SIGINT, signal.SIGTERM]
    assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        child = Child([str(tmp_path / "none")], os.environ, log)
    assert child.wait(20) == 127
    assert "cannot start" in (tmp_path / "log").read_text()
