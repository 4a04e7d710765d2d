"""Running ``bundle`` and its installer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from click.testing import CliRunner, Result

from glm5_ascend.cli import cli
from tests.deploy.render.plans import PLANS, site, written

PLAN = PLANS["mixed two nodes"]


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def made(tmp_path: Path, out: str = "out", *words: object) -> Path:
    """A bundle without wheels."""
    plan = written(PLAN, tmp_path)
    result = run("bundle", plan, "--out", tmp_path / out, *site(PLAN), *words)
    assert result.exit_code == 0, result.output
    return tmp_path / out


def install(folder: Path, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(folder / "install.sh"), *map(str, words)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
