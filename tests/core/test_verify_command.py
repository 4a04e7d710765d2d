"""``glm5-ascend verify``: engines by name, exit codes, JSON, and no torch for headers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.engine_releases import RELEASES, SERIES, find_release
from glm5_ascend.errors import Glm5Error
from tests.core.engine_folder import good


def test_releases() -> None:
    assert find_release("vllm-ascend==0.23").text == "0.23.0.post1"
    assert find_release("0.30").text == "0.30.0rc2"
    assert find_release("vllm_ascend==v0.18.0rc1").text == "0.18.0rc1"
    assert sorted(RELEASES) == list(RELEASES)
    assert SERIES[0] == (0, 17)
    for wrong in ("sglang==0.5", "0.31", "0.23.7", "vllm-ascend>=0.23", ""):
        with pytest.raises(Glm5Error):
            find_release(wrong)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["verify", *arguments])


def test_command(tmp_path: Path) -> None:
    made = good()
    made.description["group_size"] = 256
    made.write(tmp_path)
    result = invoke(str(tmp_path), "--for", "vllm-ascend==0.30", "--json")
    assert result.exit_code == 1, result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    assert document["engine"] == "0.30.0rc2"
    assert document["passed"] is False
    finding = document["findings"][0]
    assert finding["severity"] == "error"
    assert finding["rule"] == "group-size"
    assert finding["subjects"] == ["group_size"]
    assert all(finding[key] for key in ("message", "fix", "source", "engines"))
    text = invoke(str(tmp_path), "--for", "0.30").stdout
    assert "vllm-ascend 0.30.0rc2" in text
    assert "1 errors, 0 warnings" in text
    made.description["group_size"] = 0
    made.write(tmp_path)
    result = invoke(str(tmp_path))
    assert result.exit_code == 0
    assert "nothing found" in result.stdout


def test_warnings_alone_exit_with_0(tmp_path: Path) -> None:
    made = good()
    del made.description["model.norm.weight"]
    assert invoke(str(made.write(tmp_path))).exit_code == 0


def test_wrong_use(tmp_path: Path) -> None:
    good().write(tmp_path)
    assert invoke(str(tmp_path), "--for", "0.99").exit_code == 1
    assert invoke(str(tmp_path), "--full", "--sample", "3").exit_code == 2
    assert invoke(str(tmp_path / "none")).exit_code == 1


def test_headers_need_no_torch(tmp_path: Path) -> None:
    good().write(tmp_path)
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom glm5_ascend.cli import cli\n"
        f"assert CliRunner().invoke(cli, ['verify', {str(tmp_path)!r}]).exit_code == 0\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False"], done.stderr
