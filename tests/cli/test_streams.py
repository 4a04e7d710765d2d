"""Streams that close, break or fill up, and text that would break a line, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend import console
from glm5_ascend.errors import ExitCode, Glm5Error
from tests.core import micro

PLAIN = [sys.executable, "-m", "glm5_ascend"]
# A job that reports its progress and then a result, in place of `inspect`.
JOB = """
from pathlib import Path
from glm5_ascend import console, inspection
from glm5_ascend.cli import main

class Result:
    def as_dict(self):
        return {"name": Path("x").name}
    def as_text(self):
        return "result"

def inspect(directory):
    for _ in range(100):
        console.note("a line about the progress of the job" * 9)
    (directory / "done").touch()
    return Result()

inspection.inspect_checkpoint = inspect
main()
"""


def job(directory: Path, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", JOB, "inspect", str(directory), "--json"]
    return subprocess.run(command, **streams)


def broken_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def test_nobody_reads_stderr(tmp_path: Path) -> None:
    pipe = broken_pipe()
    done = job(tmp_path, stdout=subprocess.PIPE, stderr=pipe)
    os.close(pipe)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"name": "x"}
    assert (tmp_path / "done").exists()


def test_nobody_reads_stdout(tmp_path: Path) -> None:
    pipe = broken_pipe()
    done = job(tmp_path, stdout=pipe, stderr=subprocess.PIPE)
    help_ = subprocess.run([*PLAIN, "--help"], stdout=pipe, stderr=subprocess.PIPE)
    os.close(pipe)
    assert done.returncode == help_.returncode == 0
    assert help_.stderr == b""
    assert b"Error" not in done.stderr


def test_stdout_is_full(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = job(tmp_path, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == ExitCode.INPUT
    assert done.stderr.splitlines()[-2:] == [
        b"error: cannot write the result to stdout: No space left on device",
        b"hint: the work itself is done; print its result to a place with space",
    ]


def test_closed_stderr_does_not_send_progress_to_stdout(tmp_path: Path) -> None:
    done = job(tmp_path, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"name": "x"}


def test_all_streams_closed(tmp_path: Path) -> None:
    done = job(tmp_path, preexec_fn=lambda: os.closerange(0, 3))
    assert done.returncode == 0
    assert (tmp_path / "done").exists()


NAMES = [b"caf\xe9", "naïve 😀".encode(), b"two\nlines", b"\x1b[31mred", b":smile: [bold]x"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("name", NAMES)
def test_any_path_can_be_printed(name: bytes, encoding: str, tmp_path: Path) -> None:
    directory = os.fsencode(tmp_path) + b"/" + name
    micro.write(Path(os.fsdecode(directory)))
    environ = os.environ | {"PYTHONIOENCODING": f"{encoding}:strict"}
    command = [*map(os.fsencode, PLAIN), b"inspect", directory]
    done = subprocess.run([*command, b"--json"], capture_output=True, env=environ)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["directory"] == os.fsdecode(directory)
    done = subprocess.run(command, capture_output=True, env=environ)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[1].startswith(b"  family")
    assert b"\x1b" not in done.stdout


def test_second_ctrl_c_leaves_no_traceback(tmp_path: Path) -> None:
    code = JOB.replace('(directory / "done").touch()', "import time; time.sleep(60)")
    code = code.replace("main()", "import atexit, time; atexit.register(time.sleep, 1); main()")
    process = subprocess.Popen(
        [sys.executable, "-c", code, "inspect", str(tmp_path)], stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if line == b"interrupted\n":
            break
    process.send_signal(signal.SIGINT)
    assert process.stderr.read() == b""
    assert process.wait(60) == ExitCode.INTERRUPTED
    process.stderr.close()


def test_messages_are_one_literal_line(capsys: pytest.CaptureFixture[str]) -> None:
    odd = "a\nb\r\x1b[2J\u2028\u202e\udce9 :x: [red]é"
    escaped = "a\\nb\\r\\x1b[2J\\u2028\\u202e\\udce9 :x: [red]é"
    console.report(Glm5Error(odd, odd))
    console.note(odd)
    expected = f"error: {escaped}\nhint: {escaped}\n{escaped}\n"
    assert capsys.readouterr().err == expected


def test_no_work_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("quantising", 0) as advance:
        advance(0)
    assert capsys.readouterr().err == ""
