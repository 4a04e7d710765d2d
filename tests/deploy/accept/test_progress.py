"""What ``accept`` says while it works, and what is left when it is interrupted."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.deploy.accept import progress
from glm5_ascend.deploy.accept.client import Client
from glm5_ascend.errors import Unhealthy
from tests.deploy.accept.fake import endpoint

NAMES = [*("golden 1", "golden 2", "golden 3", "prose", "long prompt", "tool call", "stream")]


def test_a_line_for_every_check_on_stderr() -> None:
    with endpoint("wrong") as server:
        result = CliRunner().invoke(cli, ["accept", server.url, "--json"])
    first, *lines = result.stderr.splitlines()
    assert first == f"asking {server.url}: 7 checks"
    said = [re.fullmatch(r"(\d) of 7: (pass|fail) (.+) \((\d+ s)\)", line) for line in lines]
    assert [m and (int(m[1]), m[3]) for m in said] == list(enumerate(NAMES, start=1))
    assert [m[2] for m in said if m] == ["pass", "fail", *["pass"] * 5]
    json.loads(result.stdout)  # nothing else is there


def test_a_check_that_takes_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.2)
    with endpoint("slow start") as server:
        result = CliRunner().invoke(cli, ["accept", server.url])
    assert re.search(r"^7 of 7: stream(, \d+ pieces, \d+ per second)?, \d s$", result.stderr, re.M)


def test_pieces_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def piece(self: progress.Progress) -> None:
        seen.append(1)

    monkeypatch.setattr(progress.Progress, "piece", piece)
    with endpoint() as server:
        CliRunner().invoke(cli, ["accept", server.url])
    assert len(seen) == 16 + 4 * 128


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_interrupted_in_the_streams(form: tuple[str, ...]) -> None:
    with endpoint("stalls") as server:
        words = [sys.executable, "-m", "glm5_ascend", "accept", server.url, *form]
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("6 of 7"):
                    break
            # The four streams stand still behind their twentieth piece.
            until = time.monotonic() + 30
            while len([b for b in server.asked if b.get("stream")]) < 5:
                assert time.monotonic() < until
                time.sleep(0.05)
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, rest = process.communicate(timeout=30)
            assert time.monotonic() - begin < 10
    assert process.returncode == 130
    assert "Traceback" not in rest
    if form:
        found = json.loads(out)
        assert (found["go"], found["interrupted"]) == (None, "stream")
        assert [check["name"] for check in found["checks"]] == NAMES[:-1]
    else:
        *lines, last = out.splitlines()
        named = [re.match(r"pass +(.+?)  ", line) for line in lines]
        assert [m and m[1] for m in named] == NAMES[:-1]
        assert last == "no verdict: interrupted at stream"


def test_connections_are_cut_and_no_more_are_made() -> None:
    with endpoint("stalls") as server:
        client = Client.of(server.url)
        threading.Timer(0.5, client.cut).start()
        begin = time.monotonic()
        body = {"model": "glm", "messages": [], "max_tokens": 128}
        with pytest.raises(Unhealthy):
            client.stream("/v1/chat/completions", body)
        with pytest.raises(Unhealthy):
            client.get("/v1/models")
        assert time.monotonic() - begin < 10


def test_a_bar_on_a_terminal() -> None:
    with endpoint() as server:
        ours, theirs = pty.openpty()
        words = [sys.executable, "-m", "glm5_ascend", "accept", server.url]
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=theirs, env=environ, text=True
        ) as process:
            os.close(theirs)
            seen = b""
            while True:
                try:
                    piece = os.read(ours, 65_536)
                except OSError:
                    break
                if not piece:
                    break
                seen += piece
            out, _ = process.communicate(timeout=30)
        os.close(ours)
    assert process.returncode == 0
    assert out.splitlines()[-1] == "go"
    assert b"7/7" in seen
    assert b"pieces" in seen


def test_a_wait_of_more_than_a_day_is_wrong_usage() -> None:
    result = CliRunner().invoke(cli, ["accept", "http://127.0.0.1:1", "--timeout", "86401"])
    assert (result.exit_code, "--timeout" in result.stderr) == (2, True)
