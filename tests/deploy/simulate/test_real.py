"""A plan with DP, EP and drafts starts through vLLM, is accepted, and ends without a trace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.deploy.preflight import free_port
from tests.deploy.processes import child_of, in_session
from tests.deploy.render.plans import plan, role

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).parents[3]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def accepted(url: str, file: Path) -> tuple[int, dict[str, Any]]:
    words = ["accept", url, "--plan", str(file), "--json", "--timeout", "300"]
    result = CliRunner().invoke(cli, words)
    return result.exit_code, json.loads(result.stdout)


def test_dp2_ep_with_drafts(tmp_path: Path) -> None:
    made = plan("a2-313t", 1, role("mixed", (0,), "dp2tp1", 400))
    file = tmp_path / "plan.yaml"
    replace(made, predicted={"ttft_ms": 900.0, "tpot_ms": 40.0}).dump(file)
    port = free_port()
    words = ["serve", "--plan", str(file), "--simulate", "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "glm5_ascend", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("ready:"):
                break
        text = "".join(lines)
        try:
            assert text.endswith(f"ready: http://127.0.0.1:{port}/v1 (stop with Ctrl-C)\n"), text
            engine = child_of(process.pid)
            url = f"http://127.0.0.1:{port}"
            code, found = accepted(url, file)
            metrics = get(f"{url}/metrics")
            started = len(in_session(engine))
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert in_session(engine) == []
    assert not list(tmp_path.glob("glm5-ascend-*"))

    assert "layout: mixed: dp2tp1 (EP 2) on 2 dies -> dp2tp1 (EP 2) in 2 processes\n" in text
    assert (code, found["go"], found["simulated"]) == (0, True, True), found
    verdicts = {check["name"]: check["verdict"] for check in found["checks"]}
    assert {name for name, verdict in verdicts.items() if verdict != "pass"} == {
        "long prompt",
        "speed",
    }
    assert 0.3 < found["measured"]["accepted_per_draft"] <= 1
    assert started >= 3  # vLLM's front end and two engines
    # Both DP ranks answered.
    counts = re.findall(
        r'^vllm:request_success_total\{engine="(\d)",finished_reason="length",.*\} (\S+)$',
        metrics,
        re.MULTILINE,
    )
    assert len(counts) == 2
    assert all(float(count) > 0 for _, count in counts)
