"""Wheels of a bundle: resolved for the servers, fetched once, installed without a network."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.bundle import tiny
from tests.deploy.bundle.making import PLAN, install, made, run
from tests.deploy.render.plans import site, written

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
IMAGE = "quay.io/ascend/vllm-ascend:v0.30.0rc2-a3"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index for this machine and another."""
    folder = tmp_path / "index"
    archs = tuple({"aarch64", "x86_64", platform.machine()})
    for name, value in tiny.index(folder, PYTHON, archs).items():
        monkeypatch.setenv(name, value)
    return folder


def no_network() -> list[str]:
    """A command that takes the network away from the one behind it, where the kernel lets it."""
    words = ["unshare", "-rn"]
    allowed = shutil.which("unshare") and not subprocess.run([*words, "true"]).returncode
    return words if allowed else []


@pytest.mark.slow
def test_wheels_install_without_a_network(index: Path, tmp_path: Path) -> None:
    words = ("--wheels", "--python", PYTHON, "--arch", platform.machine())
    folder = made(tmp_path, "out", *words, "--project", index / tiny.PROJECT)
    names = {path.name for path in (folder / "wheels").glob("*.whl")}
    tag = f"cp{PYTHON.replace('.', '')}"
    pebble = f"pebble-0.5-{tag}-{tag}-manylinux2014_{platform.machine()}.whl"
    assert names == {tiny.PROJECT, "stone-2.0-py3-none-any.whl", pebble}
    rows = (folder / "wheels" / "requirements.txt").read_text().splitlines()
    digest = hashlib.sha256((index / pebble).read_bytes()).hexdigest()
    assert f"pebble==0.5 --hash=sha256:{digest}" in rows
    assert json.loads((folder / "bundle.json").read_text())["wheels"][2]["version"] == "2.0"
    shutil.rmtree(index)
    # A newer wheel that someone laid there is not taken.
    late = tiny.wheel(folder / "wheels", "stone", "3.0")
    venv = tmp_path / "venv"
    assert install(folder, "--venv", venv).returncode == 1
    assert not venv.exists()
    late.unlink()
    environ = {**os.environ, "PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0"}
    environ["PIP_INDEX_URL"] = "http://127.0.0.1:9/simple"
    start = [*no_network(), "sh", str(folder / "install.sh"), "--venv", str(venv)]
    done = subprocess.run(
        start,
        env={**environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "Name: glm5_ascend\nVersion: 9.0" in done.stdout
    code = "import tiny_glm5_ascend, tiny_stone, tiny_pebble; print(tiny_pebble.tag)"
    found = subprocess.run([venv / "bin" / "python", "-c", code], capture_output=True, text=True)
    assert found.stdout == f"{tag}-{tag}-manylinux2014_{platform.machine()}\n"


def test_wheels_of_another_machine(index: Path, tmp_path: Path) -> None:
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    words = ("--wheels", "--python", PYTHON, "--arch", other)
    folder = made(tmp_path, "out", *words, "--project", index / tiny.PROJECT)
    (pebble,) = (folder / "wheels").glob("pebble*")
    assert pebble.name.endswith(f"manylinux2014_{other}.whl")
    done = install(folder, "--into", sys.executable)
    assert done.returncode == 5
    assert f"the wheels are for {other}" in done.stderr
    # Of another Python there is no pebble.
    plan, old = tmp_path / "plan.yaml", ("--wheels", "--python", "3.7", "--arch", other)
    words = ("bundle", plan, *site(PLAN), *old, "--project", index / tiny.PROJECT)
    result = run(*words, "--out", tmp_path / "b")
    assert result.exit_code == 7
    assert "pebble" in result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index", "out", "plan.yaml"]


def test_wheels_that_are_there_are_kept_if_right(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.docker(tmp_path / "bin", broken=IMAGE)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    plan = written(PLAN, tmp_path)
    words = ["bundle", plan, "--out", tmp_path / "out", "--wheels", "--images", *site(PLAN)]
    words += ["--python", PYTHON, "--project", index / tiny.PROJECT]
    assert run(*words).exit_code == 7
    wheels = tmp_path / "out.partial" / "wheels"
    stone = wheels / "stone-2.0-py3-none-any.whl"
    good = stone.read_bytes()
    stone.write_bytes(b"half of it")
    (wheels / "needless-1.0-py3-none-any.whl").write_bytes(b"of another try")
    tiny.docker(tmp_path / "bin")
    result = run(*words)
    assert result.exit_code == 0, result.output
    kept = tmp_path / "out" / "wheels"
    assert (kept / stone.name).read_bytes() == good
    assert not (kept / "needless-1.0-py3-none-any.whl").exists()


def test_sources_of_the_project(tmp_path: Path) -> None:
    plan = written(PLAN, tmp_path)
    words = ("bundle", plan, "--dry-run", "--wheels", *site(PLAN), "--project")
    for name in ("other-1-py3-none-any.whl", "folder"):
        (tmp_path / name).mkdir()
        result = run(*words, tmp_path / name)
        assert (result.exit_code, "neither a wheel" in result.output) == (1, True)
