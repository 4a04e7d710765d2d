"""The command: exit codes, JSON, and errors."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from glm5_ascend.cli import cli


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *words])


def test_log(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("RuntimeError: Can not support soc_version: 104.\n")
    done = run("--log", str(log), "--json")
    assert done.exit_code == 1
    (cause,) = json.loads(done.stdout)["causes"]
    assert (cause["name"], cause["line"]) == ("soc", 1)
    log.write_text("all is well\n")
    done = run("--log", str(log))
    assert done.exit_code == 0
    assert "no known failure" in done.stdout


def test_this_machine() -> None:
    rows = json.loads(run("--json").stdout)["results"]
    by_check = {row["check"]: row for row in rows}
    assert by_check["reachable"]["status"] == "pass"
    assert by_check["chips"] == {
        "check": "chips",
        "host": "this machine",
        "status": "skipped",
        "detail": "no NPU device node",
    }


def test_wrong_words() -> None:
    assert run("--nodes", "a;b").exit_code == 1
    assert run("--for", "9.9").exit_code == 1
    assert run("--port", "70000").exit_code == 2
    for words in (("--for", ""), ("--model", ""), ("--log", "/dev/null", "--nodes", "a")):
        assert run(*words).exit_code == 2
    missing = run("--log", "/no/such/file")
    assert missing.exit_code == 1
    assert "/no/such/file" in missing.stderr


def test_a_file_of_nodes_that_is_no_text(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    for content, words in ((b"\xff\xfe\0", "is not UTF-8"), (b"#" * (1 << 20) + b"x", "larger")):
        hosts.write_bytes(content)
        result = run("--nodes", f"@{hosts}")
        assert result.exit_code == 1
        first, second = result.stderr.splitlines()
        assert first.startswith(f"error: {hosts} ")
        assert words in first
        assert second.startswith("hint: write one user@host a line")


def test_a_log_of_bytes_and_lines_without_end(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    content = b"\xff\0" + b"x" * (1 << 15) + b"\nRuntimeError: Can not support soc_version: 104.\n"
    log.write_bytes(content)
    result = run("--log", str(log), "--json")
    assert [cause["name"] for cause in json.loads(result.stdout)["causes"]] == ["soc"]


def test_a_device_is_no_log() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--log", "/dev/zero"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot use /dev/zero: a device, not a log\n")
