"""``serve --plan --simulate`` with dummy engines: start, failures, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from glm5_ascend.deploy.preflight import free_port
from tests.deploy.processes import in_session, running, until
from tests.deploy.render.plans import PLANS, written

ROOT = Path(__file__).parents[3]
GOOD = ["http={port}", "children"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, checkpoint: Path) -> Start:
    def begin(name: str, port: int, **setup: list[str]) -> subprocess.Popen[str]:
        words = ["serve", "--plan", str(written(PLANS[name], tmp_path)), "--simulate"]
        words += ["--model", str(checkpoint), "--port", str(port)]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.deploy.simulate.dummies", json.dumps(setup), *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until_ready(process: subprocess.Popen[str], port: int) -> str:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(f"ready: http://127.0.0.1:{port}/v1"):
            return "".join(lines)
    raise AssertionError("".join(lines))


def three_ports() -> int:
    """A port whose successors by 100 and 101 are free as well.

    Below those that the kernel gives to connections, which come and go, and outside of those that
    a plan uses between its servers (12980, and from 20000). Test processes have neighbouring
    numbers, and reserve ports up to 102 apart.
    """
    for port in range(13_000 + os.getpid() * 211 % 6_000, 19_800):
        try:
            for more in (0, 100, 101):
                with socket.create_server(("127.0.0.1", port + more)):
                    pass
        except OSError:
            continue
        return port
    raise AssertionError("no ports are free")


def test_a_split_plan_starts_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    port = three_ports()
    with start("split", port, decode=GOOD, prefill=GOOD) as process:
        text = until_ready(process, port)
        sessions = children(process.pid)
        assert len(sessions) == 2
        until(lambda: all(len(in_session(one)) == 3 for one in sessions))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            assert answer.status == 200
        assert len(list(tmp_path.glob("glm5-ascend-*/caches"))) == 1
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert "in 2 processes" in text
    assert [in_session(one) for one in sessions] == [[], []]
    assert not list(tmp_path.glob("glm5-ascend-*"))


def test_two_on_neighbouring_ports(start: Start) -> None:
    port = three_ports()
    with start("split", port, decode=GOOD, prefill=GOOD) as one:
        with start("split", port + 1, decode=GOOD, prefill=GOOD) as two:
            until_ready(one, port)
            until_ready(two, port + 1)
            ports = set()
            for session in (*children(one.pid), *children(two.pid)):
                line = Path(f"/proc/{session}/cmdline").read_text()
                ports.add(line.partition("http=")[2].partition("\0")[0])
            assert len(ports) == 4
            two.send_signal(signal.SIGINT)
            two.communicate(timeout=60)
        one.send_signal(signal.SIGINT)
        one.communicate(timeout=60)
    assert (one.returncode, two.returncode) == (130, 130)


@pytest.mark.parametrize("broken", ["prefill", "decode"])
def test_one_engine_that_does_not_start_ends_the_other(
    broken: str, start: Start, tmp_path: Path
) -> None:
    port = three_ports()
    setup = {"decode": GOOD, "prefill": GOOD} | {broken: ["exit=9"]}
    with start("split", port, **setup) as process:
        _, text = process.communicate(timeout=60)
    assert process.returncode == 7, text
    name = "the prefill engine" if broken == "prefill" else "the engine"
    assert f"error: {name} ended with exit code 9\n" in text
    assert not list(tmp_path.glob("glm5-ascend-*"))
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)


def test_one_engine_that_dies_ends_the_other(start: Start) -> None:
    port = three_ports()
    with start("split", port, decode=GOOD, prefill=GOOD) as process:
        until_ready(process, port)
        sessions = children(process.pid)
        named = {Path(f"/proc/{one}/cmdline").read_text(): one for one in sessions}
        prefill = next(one for text, one in named.items() if f"http={port + 101}" in text)
        os.kill(prefill, signal.SIGKILL)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "error: the prefill engine ended with signal 9 (SIGKILL)\n" in rest
    assert not any(running(one) or in_session(one) for one in sessions)


def test_an_engine_that_ends_by_itself_is_a_failure(start: Start) -> None:
    with start("mixed one node", free_port(), mixed=["exit=0"]) as process:
        _, text = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "error: the engine ended with exit code 0\n" in text


def test_a_port_in_use(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with start("mixed one node", port, mixed=GOOD) as process:
            _, text = process.communicate(timeout=60)
    assert process.returncode == 5
    assert f"error: port {port} on 127.0.0.1 is in use\n" in text
