"""The command line: voice, streams, exit codes and what each command passes on."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from glm5_ascend import __version__
from glm5_ascend.cli import cli
from glm5_ascend.errors import (
    BackendUnavailable,
    ChildFailed,
    DoesNotFit,
    ExitCode,
    Glm5Error,
    Unhealthy,
)
from glm5_ascend.exit_codes import MEANINGS


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args), prog_name="glm5-ascend")


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"glm5-ascend, version {__version__}\n"


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_command_has_help_without_hidden_defaults(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: glm5-ascend {command} ")
    for parameter in cli.commands[command].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"--{parameter.name} has no help"


def test_group_help_documents_every_exit_code() -> None:
    assert set(MEANINGS) == set(ExitCode)
    help_text = run("--help").stdout
    for code, meaning in MEANINGS.items():
        assert f"{code.value:>3}  {meaning}\n" in help_text


USAGE = {
    "no command": ([], "missing command", "glm5-ascend --help"),
    "unknown command": (["quantise"], "no such command 'quantise'", "glm5-ascend --help"),
    "missing argument": (["inspect"], "missing argument 'DIR'", "glm5-ascend inspect --help"),
    "missing option": (["quantize", "a", "b"], "--scheme", "glm5-ascend quantize --help"),
    "unknown option": (["inspect", "d", "--jsn"], "no such option", "glm5-ascend inspect --help"),
    "bad choice": (["quantize", "a", "b", "--scheme", "w2"], "there is no preset 'w2'", "--help"),
    "no workers": (["quantize", "a", "b", "--scheme", "w8a8", "--workers", "0"], "0", "--help"),
    "both modes": (
        ["quantize", "a", "b", "--scheme", "w8a8", "--resume", "--overwrite"],
        "exclude each other",
        "quantize --help",
    ),
    "option without value": (["demo", "--keep"], "requires an argument", "glm5-ascend demo --help"),
    "empty path": (["inspect", ""], "the path is empty", "glm5-ascend inspect --help"),
    "empty source": (["quantize", "", "b", "--scheme", "w8a8"], "the path is empty", "--help"),
    "empty model": (["serve", ""], "MODEL is empty", "glm5-ascend serve --help"),
    "flag before the model": (["serve", "--port", "1", "m"], "give MODEL before", "serve --help"),
    "NaN": (["plan", "--rate", "nan"], "'--rate': nan is no number up to 1e+12", "plan --help"),
    "infinity": (["fit", "--kv-gib", "inf"], "is not in the range", "fit --help"),
    "above all": (["plan", "--rate", "inf"], "inf is no number up to", "plan --help"),
    "absurd": (["fit", "--max-num-seqs", "9" * 400], "is not below 2**31", "fit --help"),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_has_the_same_voice(case: str) -> None:
    args, message, hint = USAGE[case]
    result = run(*args)
    assert result.exit_code == ExitCode.USAGE
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: see `glm5-ascend")
    assert hint in second


def test_a_full_disk_is_an_error_and_other_surprises_keep_their_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, code in ((errno.ENOSPC, ExitCode.DOES_NOT_FIT), (errno.EIO, 1)):

        def fail(directory: Path, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("glm5_ascend.inspection.inspect_checkpoint", fail)
        result = run("inspect", "d")
        assert result.exit_code == code
        assert ("error: cannot write: the disk is full" in result.stderr) == (code != 1)


ERRORS = [Glm5Error, DoesNotFit, BackendUnavailable, Unhealthy, ChildFailed]


@pytest.mark.parametrize("kind", ERRORS)
def test_expected_failures(kind: type[Glm5Error], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(directory: Path) -> None:
        raise kind(f"[bold]{directory} is wrong", "fix it")

    monkeypatch.setattr("glm5_ascend.inspection.inspect_checkpoint", fail)
    for json_flag in ([], ["--json"]):
        result = run("inspect", "d" * 300, *json_flag)
        assert result.exit_code == kind.exit_code
        assert result.stdout == ""
        assert result.stderr == f"error: [bold]{'d' * 300} is wrong\nhint: fix it\n"


@pytest.mark.parametrize(
    ("state", "line"), [((), "interrupted"), (("half done",), "interrupted: half done")]
)
def test_interrupt(state: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(directory: Path) -> None:
        raise KeyboardInterrupt(*state)

    monkeypatch.setattr("glm5_ascend.inspection.inspect_checkpoint", interrupted)
    result = run("inspect", "x")
    assert result.exit_code == ExitCode.INTERRUPTED
    assert result.stderr == f"\n{line}\n"


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(directory: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("glm5_ascend.inspection.inspect_checkpoint", broken)
    assert isinstance(run("inspect", "x").exception, ZeroDivisionError)


SLOW_INSPECT = """
import time

from glm5_ascend import inspection
from glm5_ascend.cli import main

def inspect(directory):
    print("inside", flush=True)
    time.sleep(60)

inspection.inspect_checkpoint = inspect
main()
"""
PLAIN = [sys.executable, "-m", "glm5_ascend"]


def test_exit_code_and_streams_of_the_real_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PLAIN, "inspect", str(tmp_path / "absent"), "--json"], capture_output=True, text=True
    )
    assert done.returncode == ExitCode.INPUT
    assert done.stdout == ""
    assert done.stderr.startswith("error: cannot read ")
    assert len(done.stderr.splitlines()) == 2


def test_ctrl_c_of_the_real_process(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", SLOW_INSPECT, "inspect", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "inside\n"
    started.send_signal(signal.SIGINT)
    _, stderr = started.communicate(timeout=60)
    assert started.returncode == ExitCode.INTERRUPTED
    assert stderr.split() == ["interrupted"]


def test_an_interrupt_while_modules_load_is_one_line() -> None:
    program = (
        "import runpy, sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'glm5_ascend.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "runpy.run_module('glm5_ascend', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


class Recorder:
    """Stands in for the work of a command and remembers what it was given."""

    def __init__(self, result: object = 0) -> None:
        self.result = result
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        self.args, self.kwargs = args, kwargs
        return self.result


VLLM_FLAGS: dict[str, list[str]] = {
    "none": [],
    "json": ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'],
    "short": ["-tp", "2", "-dp=2", "-O3", "-cc.mode=none"],
    "equals": ["--quantization", "ascend", "--dtype=float32"],
    "negative value": ["--seed", "-1"],
    "looks like ours": ["--dry-runs", "--op", "x", "--js", "--version"],
    "lone dash": ["-"],
    "many values": ["--served-model-name", "a", "b", "--port", "8000"],
    "empty and blank": ["--tool-parser-plugin", "", "--chat-template", "a b"],
}


@pytest.mark.parametrize("ours", ["none", "before", "after", "between"])
@pytest.mark.parametrize("case", VLLM_FLAGS)
def test_serve_passes_the_flags_of_vllm_verbatim(
    case: str, ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = Recorder(7)
    monkeypatch.setattr("glm5_ascend.deploy.serve.run", serve)
    flags = VLLM_FLAGS[case]
    own = ["--dry-run", "--op-backend", "reference"]
    args = {
        "none": ["m", *flags],
        "before": ["m", *own, *flags],
        "after": ["m", *flags, *own],
        "between": [*own[:1], "m", *own[1:], *flags],
    }[ours]
    result = run("serve", *args)
    assert result.exit_code == 7, "the code of the server is that of the command"
    assert serve.args == (Path("m"), flags)
    backend = "auto" if ours == "none" else "reference"
    assert serve.kwargs == {"dry_run": ours != "none", "op_backend": backend}


def test_after_two_dashes_everything_is_for_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Recorder()
    monkeypatch.setattr("glm5_ascend.deploy.serve.run", serve)
    run("serve", "m", "--port", "1", "--", "--dry-run", "--help", "--op-backend", "x")
    assert serve.args[1] == ["--port", "1", "--dry-run", "--help", "--op-backend", "x"]
    assert serve.kwargs == {"dry_run": False, "op_backend": "auto"}


@pytest.mark.torch
def test_quantize_passes_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    from glm5_ascend.quant.command import QuantizeOptions, Summary

    summary = Summary(
        destination=Path("d"),
        scheme="w8a8",
        rotated=False,
        output_bytes=5,
        files=1,
        files_resumed=0,
        seconds=1.0,
    )
    quantize = Recorder(summary)
    monkeypatch.setattr("glm5_ascend.quant.command.run", quantize)
    result = run(
        *("quantize", "s", "d", "--scheme", "w8a8", "--no-rotate", "--dtype", "float32"),
        *("--mtp", "float", "--workers", "3", "--overwrite", "--json"),
    )
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == summary.as_dict()
    assert quantize.args == (
        QuantizeOptions(
            source=Path("s"),
            destination=Path("d"),
            scheme="w8a8",
            rotate=False,
            dtype="float32",
            mtp="float",
            workers=3,
            resume=False,
            overwrite=True,
        ),
    )
    assert run("quantize", "s", "d", "--scheme", "w4a8").stdout == summary.as_text() + "\n"
    assert quantize.args == (QuantizeOptions(Path("s"), Path("d"), "w4a8"),)


@pytest.mark.torch
def test_demo_passes_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = Recorder(None)
    monkeypatch.setattr("glm5_ascend.demo.run", demo)
    assert run("demo", "--keep", "k", "--json").exit_code == 0
    assert (demo.args, demo.kwargs) == ((), {"keep": Path("k"), "json": True})
    run("demo")
    assert demo.kwargs == {"keep": None, "json": False}
