"""The command itself: exit codes, repair, files changed in place, JSON and SARIF."""

from __future__ import annotations

import json
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from glm5_ascend.deploy.check.shell import commands

BAD = """#!/bin/bash
export HCCL_BUFFSIZE=200   # too small
export VLLM_ASCEND_ENABLE_MLAPO=1
export VLLM_ENGINE_READY_TIMEOUT_S=3600
vllm serve /models/GLM-5.2-w8a8c8 \\
  --tensor-parallel-size 2 --data-parallel-size 16 --enable-expert-parallel \\
  --max-num-seqs 32 \\
  --max-num-batched-tokens=100 --seed 1 --seed 2 \\
  --speculative-config '{"num_speculative_tokens":5,"method":"mtp","enforce_eager":true}' \\
  --additional-config '{"fuse_muls_add": true, "enable_sparse_c8": true}' > log
echo done
"""
GOOD = """export VLLM_ENGINE_READY_TIMEOUT_S=3600
vllm serve /models/GLM-5.2-w8a8 --tensor-parallel-size 8 --enable-expert-parallel
"""


def run(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["check", *words, "--for", "0.30"], input=text)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "serve.sh"
    path.write_text(BAD)
    path.chmod(0o750)
    return path


def test_exit_codes(script: Path) -> None:
    assert run(str(script)).exit_code == 1
    assert run("-", text=GOOD).exit_code == 0
    warned = GOOD.replace("3600", "600")
    assert run("-", text=warned).exit_code == 0
    assert run("-", "--strict", text=warned).exit_code == 1
    assert run().exit_code == 2
    assert run("-", text="echo").exit_code == 1
    assert run("-", "--hw", "a9", text=GOOD).exit_code == 1
    unknown = CliRunner().invoke(cli, ["check", "-", "--for", "9.9"], input=GOOD)
    assert unknown.exit_code == 1


def test_every_finding_says_why_and_what_helps(script: Path) -> None:
    rows = json.loads(run(str(script), "--json").stdout)
    assert not rows["passed"]
    assert {"key-misplaced", "c8-spelling", "hccl-buffer", "batched-small"} <= {
        row["rule"] for row in rows["findings"]
    }
    for row in rows["findings"]:
        assert all(row[key] for key in ("severity", "message", "why", "fix", "source"))
        assert (row["file"], row["line"]) == (str(script), 5)


def test_fix_prints_a_command_that_passes(script: Path) -> None:
    done = run(str(script), "--fix")
    assert done.exit_code == 1
    assert run("-", "--strict", text=done.stdout).exit_code == 0
    assert "--kv-cache-dtype int8" in done.stdout
    assert script.read_text() == BAD


def test_in_place_keeps_earlier_copies(script: Path) -> None:
    first = script.with_name("serve.sh.bak")
    first.write_text("mine\n")
    assert run(str(script), "--in-place").exit_code == 0
    assert first.read_text() == "mine\n"
    assert script.with_name("serve.sh.bak1").read_text() == BAD
    assert stat.S_IMODE(script.with_name("serve.sh.bak1").stat().st_mode) == 0o750
    script.write_text(BAD)
    done = run(str(script), "--in-place")
    assert script.with_name("serve.sh.bak2").read_text() == BAD
    assert "serve.sh.bak2" in done.stderr


def test_in_place_changes_only_what_is_wrong(script: Path) -> None:
    assert run(str(script), "--in-place").exit_code == 0
    new = script.read_text()
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert script.with_name("serve.sh.bak").read_text() == BAD
    assert sorted(p.name for p in script.parent.iterdir()) == ["serve.sh", "serve.sh.bak"]
    old_lines, new_lines = BAD.splitlines(), new.splitlines()
    for line in (0, 3, 4, 5, 6, 8, 10):
        assert old_lines[line] in new_lines
    assert "VLLM_ASCEND_ENABLE_MLAPO" not in new
    assert "--max-num-batched-tokens=192 --seed 2 \\" in new
    assert new.endswith(" > log\necho done\n")
    assert run(str(script), "--strict").exit_code == 0
    # What --fix prints is the same command.
    script.write_text(BAD)
    printed = run(str(script), "--fix").stdout
    shown = [w.value for c in commands(printed) for w in c.words]
    placed = next(c for c in commands(new) if c.words[0].value == "vllm")
    assert shlex.join(w.value for w in placed.words) == shlex.join(shown)


YAML = """model: m/GLM-5.2-w8a8
env_common: {VLLM_ENGINE_READY_TIMEOUT_S: 3600}
deployment:
  - envs: {}
    server_cmd: >
      vllm serve m/GLM-5.2-w8a8
        --enable-expert-parallel   --tensor-parallel-size 8
        --additional-config
        '{"fuse_muls_add":
          true}'
"""


def test_in_place_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "ci.yaml"
    path.write_text(YAML)
    assert run(str(path), "--in-place").exit_code == 0
    wanted = """--additional-config '{"ascend_compilation_config":{"fuse_muls_add":true}}'\n"""
    assert path.read_text() == YAML.partition("--additional-config")[0] + wanted


def test_in_place_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    text = "services: {a: {image: b, command: [vllm, serve, M, --max-num-sequences, '8']}}\n"
    path.write_text(text)
    done = run(str(path), "--in-place")
    assert done.exit_code == 1
    assert "not changed in place" in done.stderr
    assert path.read_text() == text
    assert run("-", "--in-place", text=BAD).exit_code == 1


def test_several_files_are_one_deployment(tmp_path: Path) -> None:
    size = {"dp_size": 1, "tp_size": 8}
    head = "vllm serve GLM-5.2-w8a8 -tp 8 --enable-expert-parallel --kv-transfer-config"
    for role, name in (("kv_producer", "p"), ("kv_consumer", "d")):
        config = {
            "kv_connector": "MooncakeConnectorV1",
            "kv_role": role,
            "engine_id": "1",
            "kv_connector_extra_config": {"prefill": size, "decode": size},
        }
        (tmp_path / f"{name}.sh").write_text(f"{head} '{json.dumps(config)}'\n")
    done = run(str(tmp_path / "p.sh"), str(tmp_path / "d.sh"))
    assert "peers-engine-id" in done.stdout
    assert "peers-engine-id" not in run(str(tmp_path / "d.sh")).stdout


def test_sarif(script: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.sarif"
    run(str(script), "--sarif", str(target))
    log: dict[str, Any] = json.loads(target.read_text())
    assert log["version"] == "2.1.0"
    (one,) = log["runs"]
    names = [rule["id"] for rule in one["tool"]["driver"]["rules"]]
    assert len(names) == len(set(names))
    for result in one["results"]:
        assert names[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == str(script)
        assert place["region"]["startLine"] == 5


def test_a_name_that_steers_the_terminal_is_escaped() -> None:
    text = "vllm serve M --additional-config '{\"\\u001b[31m\":1}'"
    done = run("-", text=text)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("flag", ["--disable-log-requests", "--disable-log-reqests"])
def test_a_flag_never_becomes_its_opposite(flag: str) -> None:
    done = run("-", "--fix", text=f"{GOOD.strip()} {flag}\n")
    assert "log-req" not in done.stdout


HOSTILE = {
    "Windows": ("vllm serve m \\\r\n  --seed 1\r\n", "Windows line ends"),
    "byte order mark": ("\ufeffvllm serve m\n", "byte order mark"),
    "open quote": ("echo\nvllm serve 'm --seed 1\n", "quote that opens in line 2"),
    "open double quote": ('vllm serve "m --seed 1\n', "quote that opens in line 1"),
    "variables": ("A=aaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A\n" * 20 + "vllm serve $A\n", "128 KiB"),
    "long": ("#" * (1 << 20) + "\nvllm serve m\n", "larger than 1024 KiB"),
    "deep YAML": ("---\n" + "[" * 50_000, "cannot be read"),
    "no date": ("---\na: 2026-99-99\n", "cannot be read"),
    "no number": ("---\na: 0b_\n", "cannot be read"),
    "no integer": ("---\na: !!int ''\n", "cannot be read"),
    "no bool": ("---\na: !!bool 3\n", "cannot be read"),
    "no timestamp": ("---\na: !!timestamp x\n", "cannot be read"),
    "Python tag": ("---\na: !!python/name:os.system\n", "cannot be read"),
    "YAML in itself": ("---\na: &a [*a]\n", "100,000 parts"),
    "YAML of aliases": (
        "---\na: &a [x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{n}: &{n} [{', '.join([f'*{old}'] * 8)}]\n"
            for old, n in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "100,000 parts",
    ),
    "compose of numbers": (
        "services:\n  a: {command: [1, null], devices: 3, volumes: 4, environment: 5}\n",
        "no vllm serve",
    ),
    "pod of lists": (
        "kind: Pod\nvolumes: [{name: [1]}]\n"
        "containers: [5, {volumeMounts: [{name: [1]}], env: [{name: {a: 1}}], command: 3}]\n",
        "no vllm serve",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_no_shell_or_parser_takes_is_one_error(case: str, tmp_path: Path) -> None:
    text, words = HOSTILE[case]
    path = tmp_path / "serve"
    path.write_bytes(text.encode())
    for result in (run(str(path)), run("-", text=text)):
        assert result.exit_code == 1
        assert result.stdout == ""
        first, second = result.stderr.splitlines()
        assert first.startswith("error: ")
        assert words in first
        assert second.startswith("hint: ")


def test_bytes_on_standard_input(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["check", "-", "--for", "0.30"], input=b"\xff\xfe\0")
    assert result.exit_code == 1
    assert "error: standard input is not UTF-8 text" in result.stderr
    assert run("").exit_code == 2


def test_json_that_is_too_deep_or_too_long_is_a_finding() -> None:
    for value in ("[" * 50_000, "9" * 10_000):
        result = run("-", text=f"vllm serve m --additional-config '{value}'\n")
        assert "[json-invalid]" in result.stdout


def test_a_link_stays_and_its_file_is_repaired(script: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.sh"
    link.parent.mkdir()
    link.symlink_to(script)
    run(str(link), "--in-place")
    assert link.is_symlink()
    assert script.read_text() != BAD
    assert script.with_name("serve.sh.bak").read_text() == BAD


def test_nothing_is_repaired_where_the_findings_cannot_be_written(
    script: Path, tmp_path: Path
) -> None:
    result = run(str(script), "--in-place", "--sarif", str(script / "x.sarif"))
    assert result.exit_code == 1
    assert "error: cannot use" in result.stderr
    assert script.read_text() == BAD
