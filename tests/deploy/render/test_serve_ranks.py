"""``serve --plan --external-dp``: a server per rank, together from start to end."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.deploy.render.nodes import nodes
from glm5_ascend.deploy.render.place import place_of
from tests.deploy.processes import until
from tests.deploy.render.plans import PLANS, plan, role, site, written
from tests.deploy.render.test_proxy import (
    HERE,
    ROOT,
    THERE,
    engine_session,
    environ,
    instance,
    proxy_script,
    public_port,
    seen,
)

MADE = plan(
    *("a3-752t", 2),
    role("prefill", (0,), "dp2tp8", 1700),
    role("decode", (1,), "dp2tp8", 448),
    quant="w4a8",
)
# A vllm that writes down how it was called, and answers /health, or fails.
ENGINE = """#!{python} -S
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
port = int(sys.argv[sys.argv.index("--port") + 1])
slot = port - {first}
with open({folder!r} + "/rank%d.json" % slot, "w") as file:
    json.dump([sys.argv[1:], os.environ["ASCEND_RT_VISIBLE_DEVICES"], os.getpid()], file)
if slot == {fails}:
    time.sleep({after})
    sys.exit(9)
if slot == 0 and {fails} == 1 and not {after}:
    time.sleep(600)  # as an engine does whose group never meets
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


@contextmanager
def served(
    folder: Path, checkpoint: Path, port: int, *, fails: int = -1, after: float = 0
) -> Iterator[subprocess.Popen[str]]:
    """Node 0 with stand-ins for vLLM."""
    vllm = folder / "vllm"
    text = ENGINE.format(
        python=sys.executable, first=port + 100, folder=str(folder), fails=fails, after=after
    )
    vllm.write_text(text)
    vllm.chmod(0o755)
    words = ["serve", str(checkpoint), "--plan", str(written(MADE, folder)), "--node-rank", "0"]
    words += ["--hosts", f"{HERE},{THERE}", "--nic", "lo", "--port", str(port), "--external-dp"]
    words += ["--proxy-script", str(proxy_script(folder))]
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


def test_a_dry_run_prints_every_rank(tmp_path: Path) -> None:
    words = ["serve", "--plan", str(written(MADE, tmp_path)), "--node-rank", "1", "--external-dp"]
    words += ["--hosts", f"{HERE},{THERE}", "--nic", "lo", "--dry-run"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.stderr
    place = place_of(MADE, hosts=f"{HERE},{THERE}", nic="lo", external_dp=True)
    wanted = [node.command for node in nodes(MADE, place) if node.number == 1]
    lines = result.stdout.replace("\\\n", " ").splitlines()
    assert len(lines) == len(wanted) == 2
    for line, command in zip(lines, wanted, strict=True):
        found = shlex.split(line)
        start = found.index("serve")
        assert found[start:] == command.to_argv()[1:]
        assert dict(word.split("=", 1) for word in found[1 : start - 1]) == dict(command.env)
    printed = tmp_path / "printed.sh"
    printed.write_text(result.stdout)
    checked = CliRunner().invoke(cli, ["check", str(printed), "--for", "0.30"])
    assert " 0 errors" in checked.stdout


def test_ranks_and_proxy_start_and_end_together(tmp_path: Path, checkpoint: Path) -> None:
    port = public_port()
    with served(tmp_path, checkpoint, port) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "the proxy waits" in line:
                break
        assert lines[0] == "node 0 of 2: prefill dp2tp8, 2 ranks, each a server with the API\n"
        told = [json.loads((tmp_path / f"rank{n}.json").read_text()) for n in (0, 1)]
        assert [dies for _, dies, _ in told] == ["0,1,2,3,4,5,6,7", "8,9,10,11,12,13,14,15"]
        ranks = [argv[argv.index("--data-parallel-rank") + 1] for argv, _, _ in told]
        assert ranks == ["0", "1"]
        # Before, the engines' addresses would be taken.
        with instance(THERE, port + 100), instance(THERE, port + 101):
            assert any(line.startswith("ready:") for line in process.stderr)
            words, _ = seen(tmp_path)
            start = words.index("--prefiller-ports") + 1
            assert words[start : start + 2] == [str(port + 100), str(port + 101)]
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert process.returncode == 130
    until(lambda: engine_session(tmp_path) == [])


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("fails", [0, 1])
def test_a_rank_that_ends_ends_all(
    fails: int, after: int, tmp_path: Path, checkpoint: Path
) -> None:
    port = public_port()
    with served(tmp_path, checkpoint, port, fails=fails, after=after) as process:
        _, err = process.communicate(timeout=60)
    name = "rank 1 of this server" if fails else "the engine"
    assert process.returncode == 7, err
    assert f"error: {name} ended with exit code 9\n" in err
    until(lambda: engine_session(tmp_path) == [])


def test_refusals(tmp_path: Path) -> None:
    mixed = PLANS["mixed two nodes"]
    words = ["serve", "--plan", str(written(mixed, tmp_path)), "--node-rank", "0", *site(mixed)]
    result = CliRunner().invoke(cli, [*words, "--external-dp", "--dry-run"])
    assert result.exit_code == 1
    assert "leave --external-dp out" in result.stderr
    result = CliRunner().invoke(cli, ["serve", "m", "--external-dp"])
    assert (result.exit_code, "go with --plan" in result.stderr) == (2, True)
    words = ["serve", "--plan", str(written(MADE, tmp_path)), "--simulate", "--dry-run"]
    result = CliRunner().invoke(cli, [*words, "--external-dp"])
    assert "not used: --external-dp" in result.stderr
