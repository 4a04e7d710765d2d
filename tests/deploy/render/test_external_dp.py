"""``--external-dp``: every data-parallel rank a server of its own, behind the proxy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.deploy.plan_file import Plan
from glm5_ascend.deploy.render.nodes import api_servers, nodes
from glm5_ascend.deploy.render.place import place_of
from tests.deploy.processes import in_session, until
from tests.deploy.render.plans import HOSTS, PLANS, plan, role, site, written
from tests.deploy.render.test_proxy import environ

SPLIT = PLANS["two prefills"]
STUB = """#!{python} -S
import json, os, sys, time
rank = sys.argv[sys.argv.index("--data-parallel-rank") + 1]
target = os.path.join({folder!r}, "rank" + rank)
json.dump([sys.argv[1:], dict(os.environ)], open(target + ".new", "w"))
os.rename(target + ".new", target)
time.sleep(600)
"""


def render(made: Plan, folder: Path, *words: str) -> Result:
    file = written(made, folder)
    out = ["--out", str(folder / "out"), *site(made), "--external-dp"]
    return CliRunner().invoke(cli, ["render", str(file), *out, *words])


def test_every_rank_has_its_own_port_dies_and_engine() -> None:
    place = place_of(SPLIT, hosts=",".join(HOSTS), nic="eth0", external_dp=True)
    found = nodes(SPLIT, place)
    # The prefill instances have one rank each, so nothing changes for them.
    assert [(node.number, node.slot) for node in found] == [
        (0, None),
        (1, None),
        *((2, slot) for slot in range(16)),
        *((3, slot) for slot in range(16)),
    ]
    ranks = [node.command for node in found[2:]]
    assert [c.whole("--data-parallel-rank", -1) for c in ranks] == list(range(32))
    assert [c.whole("--port", 0) for c in ranks] == [*range(8100, 8116)] * 2
    assert [c.env["ASCEND_RT_VISIBLE_DEVICES"] for c in ranks] == [str(n) for n in range(16)] * 2
    engines = [c.json("--kv-transfer-config")["engine_id"] for c in ranks]
    assert engines == [f"2-{rank}" for rank in range(32)]
    assert {c.text("--data-parallel-address") for c in ranks} == {HOSTS[2]}
    assert {c.env["HCCL_IF_IP"] for c in ranks[16:]} == {HOSTS[3]}
    assert not any(
        c.given("--headless", "--data-parallel-size-local", "--data-parallel-start-rank")
        for c in ranks
    )
    behind = api_servers(SPLIT, place)
    assert behind[:2] == [("prefill", HOSTS[0], 8100), ("prefill", HOSTS[1], 8100)]
    assert behind[2:] == [("decode", HOSTS[n], 8100 + s) for n in (2, 3) for s in range(16)]


def test_dies_of_wider_ranks() -> None:
    made = PLANS["split"]
    place = place_of(made, hosts=",".join(HOSTS), nic="eth0", external_dp=True)
    dies = [node.command.env["ASCEND_RT_VISIBLE_DEVICES"] for node in nodes(made, place)]
    assert dies[:2] == ["0,1,2,3,4,5,6,7", "8,9,10,11,12,13,14,15"]
    assert dies[4:8] == ["0,1,2,3", "4,5,6,7", "8,9,10,11", "12,13,14,15"]


def test_check_has_nothing_against_it(tmp_path: Path) -> None:
    assert render(SPLIT, tmp_path).exit_code == 0
    files = [str(path) for path in sorted((tmp_path / "out").glob("node*.sh"))]
    words = ["check", *files, "--for", SPLIT.release, "--hw", "a3-752t:4", "--json"]
    found = json.loads(CliRunner().invoke(cli, words).stdout)
    assert found["commands"] == 2 + 32
    assert [f for f in found["findings"] if f["severity"] != "note"] == []
    proxy = " ".join((tmp_path / "out" / "proxy.sh").read_text().replace("\\\n", "").split())
    ports = " ".join(str(port) for port in range(8100, 8116))
    assert proxy.endswith(f"--decoder-ports {ports} {ports}")


def test_the_script_starts_all_ranks_and_ends_them_together(tmp_path: Path) -> None:
    made = plan(
        *("a3-752t", 2),
        role("prefill", (0,), "dp1tp16", 1700),
        role("decode", (1,), "dp4tp4", 448),
        quant="w4a8",
    )
    assert render(made, tmp_path).exit_code == 0
    variables = environ(tmp_path)
    vllm = tmp_path / "bin" / "vllm"
    vllm.write_text(STUB.format(python=sys.executable, folder=str(tmp_path)))
    place = place_of(made, hosts=",".join(HOSTS[:2]), nic="eth0", external_dp=True)
    wanted = [node.command for node in nodes(made, place) if node.number == 1]
    with subprocess.Popen(
        [tmp_path / "out" / "node1.sh"],
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            files = [tmp_path / f"rank{rank}" for rank in range(4)]
            until(lambda: all(file.exists() for file in files), 30)
            for file, command in zip(files, wanted, strict=True):
                argv, env = json.loads(file.read_text())
                assert argv == command.to_argv()[1:]
                assert command.env.items() <= env.items()
                assert env["LD_LIBRARY_PATH"].startswith(str(tmp_path / "mooncake"))
            members = in_session(process.pid)
            assert len(members) == 5
            os.kill(next(pid for pid in members if pid != process.pid), signal.SIGKILL)
            _, err = process.communicate(timeout=30)
            assert process.returncode == 1
            assert "a rank has ended" in err
            until(lambda: in_session(process.pid) == [])
        finally:
            for pid in in_session(process.pid):
                os.kill(pid, signal.SIGKILL)


def test_the_script_ends_its_ranks_when_it_is_ended(tmp_path: Path) -> None:
    assert render(PLANS["split"], tmp_path).exit_code == 0
    variables = environ(tmp_path)
    script = tmp_path / "out" / "node3.sh"
    with subprocess.Popen([script], env=variables, start_new_session=True) as process:
        until(lambda: len(in_session(process.pid)) == 5)
        time.sleep(0.2)
        process.terminate()
        assert process.wait(30) == 130
        until(lambda: in_session(process.pid) == [])


def test_what_has_no_server_per_rank(tmp_path: Path) -> None:
    mixed = render(PLANS["mixed two nodes"], tmp_path)
    assert mixed.exit_code == 1
    assert "needs a balancer" in mixed.stderr
    compose = render(SPLIT, tmp_path, "--format", "compose")
    assert compose.exit_code == 1
    assert "compose has no server per rank" in compose.stderr
    ports = render(SPLIT, tmp_path, "--port", "12870")
    assert ports.exit_code == 1
    assert "between the servers" in ports.stderr
