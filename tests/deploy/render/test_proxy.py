"""The proxy of a plan: it waits for every instance, starts, and ends with its server's engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.deploy.plan_file import Plan
from glm5_ascend.deploy.preflight import free_port
from glm5_ascend.deploy.render.place import place_of
from glm5_ascend.deploy.render.proxy import endpoints, proxy_node
from tests.deploy.processes import in_session, running, until
from tests.deploy.render.plans import PLANS, plan, role, written
from tests.deploy.render.test_launch import ENGINE

ROOT = Path(__file__).parents[3]
SPLIT = plan(
    *("a3-752t", 2),
    role("prefill", (0,), "dp1tp16", 1700),
    role("decode", (1,), "dp16tp1", 448),
    quant="w4a8",
)
# Two addresses of this machine.
HERE, THERE = "127.0.0.1", "127.0.0.2"
PROXY = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
words = sys.argv[1:]
json.dump([words, os.getpid(), "http_proxy" in os.environ], open({seen!r} + ".new", "w"))
os.rename({seen!r} + ".new", {seen!r})
if {fails}:
    sys.exit(3)
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/healthcheck" else 404)
        self.end_headers()
    def log_message(self, *words):
        pass
HTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Health).serve_forever()
"""


class Healthy(BaseHTTPRequestHandler):
    """An instance that is ready."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def instance(host: str, port: int) -> Iterator[None]:
    server = HTTPServer((host, port), Healthy)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def public_port() -> int:
    """A free port whose hundredth successor is free on both addresses, above those of the plan."""
    while True:
        port = free_port()
        if not 36_200 <= port <= 65_000:
            continue
        try:
            for host in (HERE, THERE):
                with socket.socket() as probe:
                    probe.bind((host, port + 100))
        except OSError:
            continue
        return port


def proxy_script(folder: Path, *, fails: bool = False) -> Path:
    script = folder / "it's a proxy.py"
    script.write_text(PROXY.format(seen=str(folder / "proxy.json"), fails=fails))
    return script


def words_of(port: int) -> list[str]:
    """What the proxy of SPLIT must be given."""
    behind = str(port + 100)
    words = ["--host", "0.0.0.0", "--port", str(port)]
    words += ["--prefiller-hosts", HERE, "--prefiller-ports", behind]
    return [*words, "--decoder-hosts", THERE, "--decoder-ports", behind]


def rendered(folder: Path, port: int) -> Path:
    """The scripts of SPLIT on this machine's addresses."""
    script = proxy_script(folder)
    words = ["render", str(written(SPLIT, folder)), "--out", str(folder / "out"), "--nic", "lo"]
    words += ["--hosts", f"{HERE},{THERE}", "--port", str(port), "--proxy-script", str(script)]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    return folder / "out"


def seen(folder: Path) -> tuple[list[str], int]:
    file = folder / "proxy.json"
    until(file.exists, 30)
    words, pid, foreign = json.loads(file.read_text())
    assert not foreign
    return words, pid


def environ(folder: Path) -> dict[str, str]:
    """Variables with the stand-ins first, a package mooncake, and a proxy of the network."""
    (folder / "mooncake").mkdir()
    (folder / "mooncake" / "__init__.py").touch()
    binaries = folder / "bin"
    binaries.mkdir()
    (binaries / "python3").symlink_to(sys.executable)
    vllm = binaries / "vllm"
    vllm.write_text("#!/bin/bash\nexec sleep 600\n")
    vllm.chmod(0o755)
    path = f"{binaries}:{os.environ['PATH']}"
    foreign = "http://127.0.0.1:9"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "http_proxy": foreign}


def test_which_server_runs_it_and_what_it_waits_for() -> None:
    made = PLANS["two prefills"]
    place = place_of(made, hosts="10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4", nic="eth0")
    assert proxy_node(made) == 0
    assert endpoints(made, place) == [f"http://10.0.0.{n}:8100" for n in (1, 2, 3)]
    turned = Plan(
        *("glm-5.2", "w4a8", "bf16", "0.30.0rc2", "a3-752t", 2),
        (SPLIT.roles[1], SPLIT.roles[0]),
    )
    place = place_of(turned, hosts=f"{HERE},{THERE}", nic="lo")
    assert proxy_node(turned) == 0
    assert endpoints(turned, place) == [f"http://{HERE}:8100", f"http://{THERE}:8100"]
    mixed = PLANS["mixed two nodes"]
    place = place_of(mixed, hosts=f"{HERE},{THERE}", nic="lo")
    assert (proxy_node(mixed), endpoints(mixed, place)) == (None, [])


def test_a_script_waits_and_becomes_the_proxy(tmp_path: Path) -> None:
    port = public_port()
    out = rendered(tmp_path, port)
    with subprocess.Popen([out / "proxy.sh"], env=environ(tmp_path)) as process:
        try:
            with instance(HERE, port + 100):
                time.sleep(1.5)
                assert not (tmp_path / "proxy.json").exists()
                with instance(THERE, port + 100):
                    assert seen(tmp_path) == (words_of(port), process.pid)
        finally:
            process.kill()


def test_a_servers_script_starts_it_and_ends_it(tmp_path: Path) -> None:
    port = public_port()
    out = rendered(tmp_path, port)
    with (
        instance(HERE, port + 100),
        instance(THERE, port + 100),
        subprocess.Popen([out / "node0.sh"], env=environ(tmp_path), start_new_session=True) as one,
    ):
        try:
            words, pid = seen(tmp_path)
            assert words == words_of(port)
            assert running(pid)
            one.terminate()
            until(lambda: in_session(one.pid) == [], 20)
            assert not running(pid)
        finally:
            for member in in_session(one.pid):
                os.kill(member, signal.SIGKILL)
    assert "proxy" not in (out / "node1.sh").read_text()


def test_it_stops_waiting_when_the_engine_is_gone(tmp_path: Path) -> None:
    out = rendered(tmp_path, public_port())
    with subprocess.Popen([out / "node0.sh"], env=environ(tmp_path), start_new_session=True) as one:
        until(lambda: len(in_session(one.pid)) >= 2)
        one.terminate()
        until(lambda: in_session(one.pid) == [], 30)
    assert not (tmp_path / "proxy.json").exists()


# ----- serve --plan


@contextmanager
def served(
    folder: Path, checkpoint: Path, port: int, script: Path, **env: str
) -> Iterator[subprocess.Popen[str]]:
    """Node 0 of SPLIT by ``serve --plan``, with a stand-in for vLLM."""
    vllm = folder / "vllm"
    name = str(folder / "engine.json")
    vllm.write_text(ENGINE.format(python=sys.executable, seen=name, mode="serve"))
    vllm.chmod(0o755)
    made = plan(
        *("a3-752t", 2),
        role("prefill", (0,), "dp1tp16", 1700),
        role("decode", (1,), "dp16tp1", 448),
        quant="w4a8",
    )
    made.roles[0].env.update(env)  # type: ignore[attr-defined]
    words = ["serve", str(checkpoint), "--plan", str(written(made, folder)), "--node-rank", "0"]
    words += ["--hosts", f"{HERE},{THERE}", "--nic", "lo", "--port", str(port)]
    words += ["--proxy-script", str(script)]
    setup = json.dumps({"npu": {"vllm_command": str(vllm)}})
    with subprocess.Popen(
        [sys.executable, "-m", "tests.deploy.driver", setup, *words],
        cwd=ROOT,
        env={**environ(folder), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def engine_session(folder: Path) -> list[int]:
    """Processes of the stand-in engine, which runs in a session of its own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and running(int(entry.name)):
            try:
                line = (entry / "cmdline").read_bytes().decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(folder) in line and "driver" not in line:
                found.append(int(entry.name))
    return found


def test_serve_starts_it_once_all_answer_and_stops_both(tmp_path: Path, checkpoint: Path) -> None:
    port = public_port()
    with served(tmp_path, checkpoint, port, proxy_script(tmp_path)) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if "the proxy waits" in line:
                break
        assert f"the proxy waits for http://{THERE}:{port + 100}/health" in lines[-1]
        assert not any(line.startswith("ready:") for line in lines)
        assert not (tmp_path / "proxy.json").exists()
        with instance(THERE, port + 100):
            for line in process.stderr:
                lines.append(line)
                if line.startswith("ready:"):
                    break
            words, pid = seen(tmp_path)
            assert words == words_of(port)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        assert process.returncode == 130
        assert not running(pid)
        until(lambda: engine_session(tmp_path) == [])


def test_serve_ends_when_the_proxy_does(tmp_path: Path, checkpoint: Path) -> None:
    port = public_port()
    with served(tmp_path, checkpoint, port, proxy_script(tmp_path, fails=True)) as process:
        assert process.stderr is not None
        # Before, the engine's address would be taken.
        assert any("the proxy waits" in line for line in process.stderr)
        with instance(THERE, port + 100):
            _, err = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "error: the proxy ended with exit code 3" in err
    until(lambda: engine_session(tmp_path) == [])


def test_serve_gives_up_on_an_instance(tmp_path: Path, checkpoint: Path) -> None:
    limit = {"VLLM_ENGINE_READY_TIMEOUT_S": "4"}
    script = proxy_script(tmp_path)
    with served(tmp_path, checkpoint, public_port(), script, **limit) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 6
    assert f"http://{THERE}" in err.split("error: ")[1].split("hint:")[0]
    until(lambda: engine_session(tmp_path) == [])


def test_serve_looks_for_the_script_first(tmp_path: Path, checkpoint: Path) -> None:
    with served(tmp_path, checkpoint, public_port(), tmp_path / "none.py") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "the proxy of vllm-ascend is missing" in err
    assert not (tmp_path / "engine.json").exists()


@pytest.mark.parametrize("script", ["proxy.py", "/a\nb"])
def test_a_script_that_cannot_be(script: str, tmp_path: Path) -> None:
    file = written(PLANS["mixed one node"], tmp_path)
    result = CliRunner().invoke(cli, ["render", str(file), "--dry-run", "--proxy-script", script])
    assert result.exit_code == 1
    assert "proxy script" in result.stderr
