"""Files and directories that the user may not use: exit 1 and two lines, never a traceback."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.errors import ExitCode
from tests.core import micro
from tests.core.ascend import quantised

# Linux capabilities that let root pass over modes: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
_OVERRIDES = 1 << 1 | 1 << 2
_VERSION_3 = 0x20080522


@contextmanager
def modes_count() -> Iterator[None]:
    """Make this thread, even as root, subject to the modes of files."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
    assert libc.capget(header, sets) == 0
    kept = sets[0]
    sets[0] = kept & ~_OVERRIDES
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = kept
        assert libc.capset(header, sets) == 0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory whose entries get their rights back at the end."""
    with modes_count():
        yield tmp_path
    for path in tmp_path.iterdir():
        path.chmod(0o755)


def refused(*args: str) -> str:
    result = CliRunner().invoke(cli, args, prog_name="glm5-ascend")
    assert result.exit_code == ExitCode.INPUT, (result.stderr, result.exception)
    assert isinstance(result.exception, SystemExit)
    message, hint = result.stderr.splitlines()
    assert message.startswith("error: ")
    assert hint.startswith("hint: ")
    return message


@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])
@pytest.mark.parametrize("command", ["inspect", "serve"])
@pytest.mark.parametrize("described", [False, True])
def test_directory(mode: int, command: str, described: bool, home: Path) -> None:
    source = home / "s"
    if described:
        quantised().write(source)
    else:
        micro.write(source)
    source.chmod(mode)
    if (mode, command) == (0o111, "serve"):
        # Its files can be opened by name, but the weights cannot be found.
        assert "holds no *.safetensors" in refused(command, str(source))
    else:
        assert str(source) in refused(command, str(source))


@pytest.mark.parametrize("file", ["config.json", "model-00001-of-00001.safetensors"])
def test_unreadable_file(file: str, home: Path) -> None:
    micro.write(home / "s")
    (home / "s" / file).chmod(0)
    assert f"{file}: Permission denied" in refused("inspect", str(home / "s"))


def test_unreadable_description(home: Path) -> None:
    quantised().write(home / "s")
    (home / "s" / "quant_model_description.json").chmod(0)
    message = refused("inspect", str(home / "s"))
    assert "quant_model_description.json: Permission denied" in message


@pytest.mark.torch
def test_quantize(home: Path) -> None:
    (home / "no").mkdir(mode=0)
    micro.write(home / "s")
    refused("quantize", str(home / "s"), str(home / "no" / "x"), "--scheme", "none")
    (home / "s").chmod(0)
    for destination in ("d", "no"):
        message = refused("quantize", str(home / "s"), str(home / destination), "--scheme", "none")
        assert str(home / "s") in message


def test_any_file_error_names_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def inspect(directory: Path) -> None:
        (directory / "x").unlink()

    monkeypatch.setattr("glm5_ascend.inspection.inspect_checkpoint", inspect)
    message = refused("inspect", str(home))
    assert message == f"error: cannot use {home}/x: No such file or directory"


def test_an_error_of_another_kind_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def inspect(directory: Path) -> None:
        raise OSError("socket trouble")

    monkeypatch.setattr("glm5_ascend.inspection.inspect_checkpoint", inspect)
    assert isinstance(CliRunner().invoke(cli, ["inspect", "x"]).exception, OSError)
