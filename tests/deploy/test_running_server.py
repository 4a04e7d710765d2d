"""The server context manager of the demo and the tests, on dummy engines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.deploy import serve
from glm5_ascend.deploy.command import Launch, cpu_launch
from glm5_ascend.deploy.health import healthy
from glm5_ascend.deploy.preflight import free_port
from glm5_ascend.errors import ChildFailed, PreflightError, Unhealthy
from tests.deploy.facts import cpu
from tests.deploy.processes import in_session, until

DUMMY = Path(__file__).with_name("dummy.py")
Use = Callable[..., list[Launch]]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Replace the engine by a dummy; returns the launches that would have been."""

    def dummy(*words: str) -> list[Launch]:
        planned: list[Launch] = []

        def launch(*args: Any) -> Launch:
            planned.append(cpu_launch(*args))
            head = (sys.executable, "-S", str(DUMMY), *words)
            return replace(planned[-1], head=head, defaults=(), user=())

        monkeypatch.setattr("glm5_ascend.deploy.serve.cpu_launch", launch)
        monkeypatch.setattr("glm5_ascend.deploy.engine.detect", cpu)
        monkeypatch.setattr("glm5_ascend.deploy.serve.GRACE_S", 1.0)
        return planned

    return dummy


def test_server_lives_as_long_as_the_block(use: Use, checkpoint: Path, tmp_path: Path) -> None:
    port = free_port()
    planned = use(f"http={port}", "children", "stubborn")
    log = tmp_path / "log"
    environ = {"OMP_NUM_THREADS": "7", "VLLM_PLUGINS": "glm5_ascend"}
    with serve.running_server(
        checkpoint, ["--seed", "1"], port=port, log_path=log, timeout_s=30, environ=environ
    ) as server:
        assert server.base_url == f"http://127.0.0.1:{port}"
        assert server.model == str(checkpoint)
        assert healthy(server.base_url)
        until(lambda: len(in_session(server.pid)) == 3)
        seen = Path(f"/proc/{server.pid}/environ").read_bytes().decode().split("\0")
    assert in_session(server.pid) == []
    assert log.read_text().startswith("dummy engine: http")
    assert {"OMP_NUM_THREADS=7", "VLLM_PLUGINS=glm5_ascend", "HF_HUB_OFFLINE=1"} <= {*seen}
    (launch,) = planned
    assert launch.user == ("--seed", "1", "--host", "127.0.0.1", "--port", str(port))


def test_error_in_the_block_ends_the_server(use: Use, checkpoint: Path, tmp_path: Path) -> None:
    port = free_port()
    use(f"http={port}")
    flags = ["--served-model-name", "m"]
    seen: list[serve.ServerHandle] = []

    def interrupted() -> None:
        with serve.running_server(
            checkpoint, flags, port=port, log_path=tmp_path / "log", timeout_s=30
        ) as server:
            seen.append(server)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen[0].model == "m"
    assert in_session(seen[0].pid) == []


def test_early_death_shows_the_end_of_the_log(use: Use, checkpoint: Path, tmp_path: Path) -> None:
    use("exit=4")
    said: list[str] = []
    with (
        pytest.raises(ChildFailed, match="the engine ended with exit code 4") as caught,
        serve.running_server(
            checkpoint, [], log_path=tmp_path / "log", timeout_s=30, say=said.append
        ),
    ):
        pass
    assert str(tmp_path / "log") in caught.value.hint
    assert said == ["  | dummy engine: exit=4"]


def test_timeout_is_unhealthy_and_leaves_nothing(
    use: Use, checkpoint: Path, tmp_path: Path
) -> None:
    use("children")
    said: list[str] = []
    with (
        pytest.raises(Unhealthy),
        serve.running_server(
            checkpoint, [], log_path=tmp_path / "log", timeout_s=1, say=said.append
        ),
    ):
        pass
    assert said == ["  | dummy engine: children"]
    until(lambda: not _dummies())


def test_death_inside_the_block_is_reported(use: Use, checkpoint: Path, tmp_path: Path) -> None:
    port = free_port()
    use(f"http={port}")

    def killed() -> None:
        with serve.running_server(
            checkpoint, [], port=port, log_path=tmp_path / "log", timeout_s=30, say=lambda _: None
        ) as server:
            os.kill(server.pid, 9)
            until(lambda: not in_session(server.pid))

    with pytest.raises(ChildFailed, match=r"signal 9 \(SIGKILL\)"):
        killed()


def test_environment_given_to_the_server_is_checked(
    use: Use, checkpoint: Path, tmp_path: Path
) -> None:
    use()
    with (
        pytest.raises(PreflightError, match="leaves the plugin"),
        serve.running_server(
            checkpoint, [], log_path=tmp_path / "log", environ={"VLLM_PLUGINS": "other"}
        ),
    ):
        pass


def _dummies() -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(DUMMY) in words:
            found.append(entry.parent.name)
    return found
