"""The script itself, ssh, and the files of hosts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from glm5_ascend.deploy.doctor.machines import LOCAL, ask_shell, parse_nodes, survey


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_script_runs_here_and_reads_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    machine = survey([LOCAL], str(tmp_path))[0]
    assert machine.error == ""
    assert machine.text("user").split()[0].isdigit()
    assert "5 ./a.safetensors" in machine.text("checkpoint")
    assert "MemTotal" in machine.text("meminfo")
    assert survey([LOCAL], None)[0].text("checkpoint") == ""


def test_fake_tools_answer_per_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "npu-smi", 'echo "table $*"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    machine = survey([LOCAL], None)[0]
    assert machine.text("npu-smi") == "table info\n"


def test_ssh_is_asked_with_keys_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "ssh", f'echo "$@" > {tmp_path}/words; exec sh -s')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    machines = survey(["root@a", "b"], None)
    assert [m.error for m in machines] == ["", ""]
    words = (tmp_path / "words").read_text()
    assert "BatchMode=yes" in words
    assert " -- " in words


def test_a_machine_that_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "ssh", 'echo "Permission denied (publickey)." >&2; exit 255')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert survey(["root@a"], None)[0].error == "Permission denied (publickey)."
    with pytest.raises(OSError, match="Permission denied"):
        ask_shell("root@a", "true")


def test_nodes(tmp_path: Path) -> None:
    assert parse_nodes("root@h1,h2, h3") == ["root@h1", "root@h2", "root@h3"]
    assert parse_nodes("h1,h1") == ["h1"]
    file = tmp_path / "hosts"
    file.write_text("# all\nroot@10.0.0.1\nadmin@10.0.0.2  # second\n\n10.0.0.3\n")
    assert parse_nodes(f"@{file}") == ["root@10.0.0.1", "admin@10.0.0.2", "root@10.0.0.3"]
