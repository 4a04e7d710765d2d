"""``accept`` against an endpoint that is right, and against one of every fault."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from tests.deploy.accept.fake import endpoint
from tests.deploy.render.plans import PLANS, written


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["accept", *(str(word) for word in words)])


def verdicts(
    fault: str, *words: object, simulated: bool = False
) -> tuple[int, dict[str, tuple[str, str]], dict[str, Any]]:
    with endpoint(fault, simulated=simulated) as server:
        result = run(server.url, "--json", *words)
    found = json.loads(result.stdout)
    return (
        result.exit_code,
        {c["name"]: (c["verdict"], c["detail"]) for c in found["checks"]},
        found,
    )


def test_a_good_endpoint() -> None:
    code, checks, found = verdicts("")
    assert (code, found["go"], found["reasons"], found["model"]) == (0, True, [], "glm")
    assert not found["simulated"]
    assert {verdict for verdict, _ in checks.values()} == {"pass"}
    assert set(checks) == {
        *("golden 1", "golden 2", "golden 3", "prose", "long prompt", "tool call"),
        *("stream", "speed", "drafts"),
    }
    measured = found["measured"]
    assert measured["accepted_per_draft"] == 0.75
    # The server sleeps half a millisecond before each of 128 tokens.
    assert measured["tpot_ms"] >= 0.5
    assert measured["ttft_ms"] >= 0.5
    assert 0 < measured["tokens_per_s"] <= 4 * 128 / (128 * 0.0005)


def test_text_for_people() -> None:
    with endpoint() as server:
        result = run(f"{server.url}/v1/", "--model", "glm")
        bodies = server.asked
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "go"
    assert {body["temperature"] for body in bodies} == {0}
    assert len([body for body in bodies if body.get("stream")]) == 5
    assert len({body["messages"][0]["content"] for body in bodies if body.get("stream")}) == 5


@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        ("garbled", "golden 1", "rows of exclamation marks"),
        ("wrong", "golden 2", "'392' where 391 is right"),
        ("empty", "golden 3", "nothing"),
        ("repeating", "prose", "times and more"),
        ("lost", "long prompt", "where amber-7319 is right"),
        ("no tools", "tool call", "no call but"),
        ("bad arguments", "tool call", "no JSON"),
        ("wrong tool", "tool call", "get_time"),
        ("garbled stream", "stream", "rows of exclamation marks"),
        ("early end", "stream", "64 tokens where 128"),
        ("buffered", "stream", "buffering"),
        ("bad drafts", "drafts", "0.05 of the drafts"),
    ],
)
def test_wrong_answers_are_no_go(fault: str, name: str, words: str) -> None:
    code, checks, found = verdicts(fault)
    assert (code, found["go"]) == (1, False)
    assert checks[name][0] == "fail"
    assert words in checks[name][1]
    assert any(reason.startswith(f"{name}: ") for reason in found["reasons"])
    if fault not in ("garbled", "empty"):
        assert [check for check, (verdict, _) in checks.items() if verdict == "fail"] == [name]


def test_slow() -> None:
    code, checks, _ = verdicts("slow", "--tpot", "6")
    assert (code, checks["speed"][0]) == (1, "fail")
    assert checks["speed"][1].startswith("TPOT ")
    code, checks, _ = verdicts("slow start", "--ttft", "400")
    assert (code, checks["speed"][0]) == (1, "fail")
    assert checks["speed"][1].startswith("TTFT ")


def test_a_plan_gives_the_limits(tmp_path: Path) -> None:
    made = replace(PLANS["mixed one node"], predicted={"ttft_ms": 5000.0, "tpot_ms": 4})
    file = written(made, tmp_path)
    code, checks, _ = verdicts("slow", "--plan", file)
    assert (code, checks["speed"][0]) == (1, "fail")
    assert checks["speed"][1].endswith(" 5 allowed")
    # The plan drafts, so a server without drafts is not what was planned.
    code, checks, _ = verdicts("no drafts", "--plan", file)
    assert (code, checks["drafts"]) == (1, ("fail", "the server makes no drafts"))
    written(replace(made, predicted={}), tmp_path)
    with endpoint() as server:
        result = run(server.url, "--plan", file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "predicts no ttft_ms" in result.stderr


def test_a_simulated_endpoint(tmp_path: Path) -> None:
    """Its model has questions of its own, and its speed is not compared with the plan's."""
    file = written(replace(PLANS["mixed one node"], predicted={}), tmp_path)
    code, checks, found = verdicts("slow", "--plan", file, simulated=True)
    assert (code, found["go"], found["simulated"]) == (0, True, True)
    assert set(checks) == {
        *(f"golden {n}" for n in (1, 2, 3, 4)),
        *("continued 1", "continued 2", "long prompt", "tool call", "stream", "speed", "drafts"),
    }
    skipped = {name for name, (verdict, _) in checks.items() if verdict != "pass"}
    assert skipped == {"long prompt", "speed"}
    assert "say nothing about the plan's NPUs; measured: TTFT" in checks["speed"][1]
    with endpoint(simulated=True) as server:
        assert "go (simulated on a CPU" in run(server.url, "--plan", file).stdout
    # A limit that the user names counts.
    code, checks, _ = verdicts("slow", "--tpot", "6", simulated=True)
    assert (code, checks["speed"][0]) == (1, "fail")


@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        ("garbled", "golden 1", "rows of exclamation marks"),
        ("garbled", "continued 1", "rows of exclamation marks"),
        ("wrong small", "golden 3", "where a new sorted list is right"),
        ("repeating code", "continued 2", "times and more"),
        ("wrong code", "continued 1", "' None' where self.items is right"),
        ("empty", "golden 4", "nothing"),
        ("no tools", "tool call", "no call but"),
        ("garbled stream", "stream", "rows of exclamation marks"),
        ("early end", "stream", "24 tokens where 48"),
        ("bad drafts", "drafts", "0.05 of the drafts"),
        ("no drafts", "drafts", "makes no drafts"),
    ],
)
def test_faults_of_a_simulated_endpoint(fault: str, name: str, words: str, tmp_path: Path) -> None:
    file = written(PLANS["mixed one node"], tmp_path)
    code, checks, found = verdicts(fault, "--plan", file, simulated=True)
    assert (code, found["go"]) == (1, False)
    assert checks[name][0] == "fail"
    assert words in checks[name][1]


@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        ("short", "long prompt", "4096 tokens"),
        ("no metrics", "drafts", "/metrics"),
        ("no drafts", "drafts", "no drafts"),
    ],
)
def test_what_cannot_be_asked_is_skipped(fault: str, name: str, words: str) -> None:
    code, checks, _ = verdicts(fault)
    assert (code, checks[name][0]) == (0, "skipped")
    assert words in checks[name][1]


def test_a_server_that_fails() -> None:
    code, checks, found = verdicts("500")
    assert (code, found["go"], found["measured"]) == (6, False, {})
    assert all(verdict == "fail" for verdict, _ in checks.values())
    assert "answered 500" in checks["golden 1"][1]


def test_a_stream_that_breaks_off() -> None:
    code, checks, _ = verdicts("breaks off")
    assert (code, checks["stream"][0]) == (1, "fail")


def errors(code: int, *words: object) -> str:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert "hint:" in result.stderr
    return result.stderr.split("\n")[0]


def test_no_endpoint() -> None:
    with endpoint("web page") as server:
        assert "is no OpenAI endpoint" in errors(1, server.url)
    with endpoint("no models") as server:
        assert "lists no models" in errors(1, server.url)
    with endpoint("down") as server:
        assert "answered 503" in errors(6, server.url)
    with endpoint() as server:
        assert "serves no 'other'" in errors(1, server.url, "--model", "other")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "does not answer" in errors(6, f"http://127.0.0.1:{port}")
    for url in ("127.0.0.1:8000", "ftp://a", "http://", "http://a:b", "http://[", "http://a b"):
        assert "no URL of a server" in errors(1, url)


def test_silence_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "does not answer: timed out" in errors(6, url, "--timeout", "0.2")


def test_api_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    with endpoint(key="s3cret") as server:
        assert "answered 401" in errors(1, server.url)
        result = run(server.url, "--api-key-file", key)
        assert result.exit_code == 0
        assert "s3cret" not in result.output
    key.write_text("two\nlines")
    assert "holds no API key" in errors(1, server.url, "--api-key-file", key)
    errors(1, server.url, "--api-key-file", tmp_path / "none")
