"""``serve --plan``: one node's part, printed and run."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.deploy.preflight import free_port
from glm5_ascend.deploy.render.nodes import nodes
from glm5_ascend.deploy.render.place import place_of
from tests.deploy.processes import child_of, in_session, until
from tests.deploy.render.plans import HOSTS, PLANS, site, written

ROOT = Path(__file__).parents[3]
# A vllm that answers /health on the port of its command and has a child of its own.
ENGINE = """#!{python} -S
import json, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
json.dump([sys.argv[1:], dict(os.environ)], open({seen!r}, "w"))
if "{mode}" == "fail":
    sys.exit(9)
subprocess.Popen(["sleep", "600"])
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["serve", *(str(word) for word in words)])


@pytest.mark.parametrize("name", ["mixed one node", "mixed two nodes", "split"])
def test_dry_run_prints_this_nodes_part(name: str, tmp_path: Path) -> None:
    made = PLANS[name]
    file = written(made, tmp_path)
    place = place_of(made, hosts=",".join(HOSTS[: made.servers]), nic="eth0")
    for node in nodes(made, place):
        result = run("--plan", file, "--node-rank", node.number, *site(made), "--dry-run")
        assert result.exit_code == 0
        # The first prefill server has the proxy.
        assert ("load_balance_proxy" in result.stderr) == (name == "split" and node.number == 0)
        assert (result.stderr == "") == ("load_balance_proxy" not in result.stderr)
        words = shlex.split(result.stdout.replace("\\\n", " "))
        start = next(i for i, word in enumerate(words) if word.endswith("vllm"))
        assert words[start + 1 :] == node.command.to_argv()[1:]
        assert words[0] == "env"
        assert dict(word.split("=", 1) for word in words[1:start]) == dict(node.command.env)
        printed = tmp_path / "printed.sh"
        printed.write_text(result.stdout)
        checked = CliRunner().invoke(cli, ["check", str(printed), "--for", "0.30"])
        assert " 0 errors" in checked.stdout


def test_checkpoint_port_and_name(tmp_path: Path) -> None:
    file = written(PLANS["mixed one node"], tmp_path)
    flags = ("--plan", file, "--node-rank", 0, "--dry-run")
    text = run("/data/x", *flags, "--port", 9000, "--served-model-name", "m").stdout
    assert "vllm serve /data/x \\" in text
    assert "  --port 9000 \\" in text
    assert "  --served-model-name m \\" in text
    assert "  --port 9001 \\" in run(*flags, "--port=9001").stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--node-rank", "2"], 1, "has no node 2"),
        (["--node-rank", "x"], 2, "--node-rank"),
        ([], 2, "--node-rank"),
        (["--node-rank", "0", "--max-model-len", "5"], 1, "--max-model-len is given beside"),
        (["--node-rank", "0", "--port", "many"], 1, "port 'many' is out of range"),
        (["--node-rank", "0", "--port", "0"], 1, "port 0 is out of range"),
        (["--node-rank", "0", "--op-backend", "cpu"], 2, "--op-backend"),
        (["--node-rank", "0"], 5, "needs vllm-ascend and an NPU"),
    ],
)
def test_refusals(words: list[str], code: int, message: str, tmp_path: Path) -> None:
    made = PLANS["mixed two nodes"]
    result = run("--plan", written(made, tmp_path), *words, *site(made))
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr.split("hint:")[0]


def test_the_flags_without_a_plan() -> None:
    assert "go with --plan" in run("m", "--nic", "eth0").stderr
    assert "MODEL" in run().stderr


def test_node_rank_without_a_plan_is_vllms(checkpoint: Path) -> None:
    result = run(checkpoint, "--dry-run", "--nnodes", "2", "--node-rank", "1")
    assert shlex.split(result.stdout.replace("\\\n", " "))[-4:] == [
        "--node-rank",
        "1",
        "--nnodes",
        "2",
    ]


def start(tmp_path: Path, checkpoint: Path, port: int, mode: str) -> subprocess.Popen[str]:
    vllm = tmp_path / "vllm"
    seen = str(tmp_path / "seen.json")
    vllm.write_text(ENGINE.format(python=sys.executable, seen=seen, mode=mode))
    vllm.chmod(0o755)
    setup = json.dumps({"npu": {"vllm_command": str(vllm)}})
    file = written(PLANS["mixed one node"], tmp_path)
    words = ["serve", str(checkpoint), "--plan", str(file), "--node-rank", "0", "--port", str(port)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.deploy.driver", setup, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_waits_for_health_and_stops_everything(tmp_path: Path, checkpoint: Path) -> None:
    port = free_port()
    with start(tmp_path, checkpoint, port, "serve") as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("ready:"):
                break
        engine = child_of(process.pid)
        until(lambda: len(in_session(engine)) == 2)
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 130
    text = "".join(lines)
    assert text.startswith("node 0 of 1: mixed dp2tp8, with the API\n")
    assert "the plan is for vllm-ascend 0.30.0rc2" in text
    assert "stopped" in rest
    assert in_session(engine) == []
    argv, environ = json.loads((tmp_path / "seen.json").read_text())
    assert argv[:2] == ["serve", str(checkpoint)]
    assert environ["HCCL_BUFFSIZE"] == "400"


def test_an_engine_that_fails(tmp_path: Path, checkpoint: Path) -> None:
    with start(tmp_path, checkpoint, free_port(), "fail") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, "")
    assert re.search(r"^error: the engine ended with exit code 9$", err, re.MULTILINE)
