"""``glm5-ascend serve``: a checkpoint behind the OpenAI API, on this machine's engine."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from glm5_ascend import env
from glm5_ascend.console import note, put
from glm5_ascend.deploy import engine as engines
from glm5_ascend.deploy.command import Launch, cpu_launch, npu_launch
from glm5_ascend.deploy.engine import Engine, Facts
from glm5_ascend.deploy.preflight import check_all, check_model, free_port
from glm5_ascend.deploy.supervise import (
    Child,
    Say,
    caught_signals,
    child_failed,
    wait_until_ready,
)
from glm5_ascend.deploy.vllm_args import VllmArgs, whole_number
from glm5_ascend.errors import ExitCode, Glm5Error, PreflightError, Unhealthy

GRACE_S = 10.0  # for the engine to end on its own
READY_S = 600.0  # vLLM's own default for VLLM_ENGINE_READY_TIMEOUT_S
TAIL_LINES = 25


@dataclass(frozen=True, slots=True)
class ServerHandle:
    """A running server.

    Attributes:
        base_url: ``http://127.0.0.1:PORT``, without ``/v1``.
        model: a model name that the server accepts.
        pid: process id of the engine, which is also its process group.
        log_path: everything that the engine has written.
    """

    base_url: str
    model: str
    pid: int
    log_path: Path


def run(model: Path, vllm_args: list[str], *, dry_run: bool, op_backend: str) -> int:
    """Serve ``model`` in the foreground until it ends or is interrupted.

    Args:
        model: directory of a plain or quantised checkpoint.
        vllm_args: flags for vLLM, passed on verbatim.
        dry_run: print environment and command on stdout and stop; problems of the environment
            are then warnings.
        op_backend: operator backend of the simulator, ``auto`` for its own choice.

    Returns:
        An exit code: 0, or 130 after Ctrl-C or SIGTERM. With an NPU it does not return:
        ``vllm serve`` takes the place of this process.

    Raises:
        Glm5Error: pre-flight failed (5), the model is not usable (1) or too large (3), the engine
            ended with an error (7) or never became healthy (6).
    """
    for variable in env.VARIABLES:
        env.read(variable.name)
    facts = engines.detect()
    engine = engines.choose(facts)
    args = VllmArgs.parse(vllm_args)
    engines.check_backend(engine, _backend(op_backend, os.environ))
    check_model(model, args, engine)
    launch = _plan(engine, facts, model, vllm_args, op_backend, os.environ)
    if dry_run:
        put(launch.render())
        for problem in _problems(engine, facts, model, args):
            note(f"warning: would fail now: {problem.message} ({problem.hint})")
        return ExitCode.DONE
    engines.check(engine, facts, os.environ)
    check_all(model, args, engine)
    timeout_s = ready_timeout(os.environ)
    _announce(engine, facts, launch)
    if engine is Engine.NPU:
        sys.stderr.flush()
        os.execve(launch.head[0], launch.command, {**os.environ, **launch.environ})
    return foreground(launch, args, timeout_s)


def _backend(asked: str, environ: Mapping[str, str]) -> str:
    """The operator backend that the flag or, without it, the environment asks for."""
    return asked if asked != "auto" else environ.get("GLM5_ASCEND_OP_BACKEND") or "auto"


def _plan(
    engine: Engine,
    facts: Facts,
    model: Path,
    vllm_args: Sequence[str],
    op_backend: str,
    environ: Mapping[str, str],
) -> Launch:
    if engine is Engine.NPU:
        return npu_launch(model, vllm_args, facts.vllm_command or "vllm")
    return cpu_launch(model, vllm_args, environ, op_backend)


def _problems(engine: Engine, facts: Facts, model: Path, args: VllmArgs) -> list[Glm5Error]:
    checks: list[Callable[[], None]] = [
        lambda: engines.check(engine, facts, os.environ),
        lambda: check_all(model, args, engine),
    ]
    problems = []
    for check in checks:
        try:
            check()
        except Glm5Error as error:
            problems.append(error)
    return problems


def _announce(engine: Engine, facts: Facts, launch: Launch) -> None:
    if engine is Engine.NPU:
        note(f"vllm-ascend with {len(facts.npus)} NPU(s): starting {launch.head[0]} serve")
        return
    note(
        f"CPU simulator mode: vLLM {facts.vllm_cpu or facts.vllm} with the glm5-ascend plugin. "
        "No NPU is involved; speed says nothing about Ascend."
    )
    if facts.npus:
        note(
            f"warning: {facts.npus[0]} is there but vllm-ascend is not installed, "
            "so the NPU is not used"
        )
    for name, value in launch.kept.items():
        note(f"kept from your environment: {name}={value}")


def ready_timeout(environ: Mapping[str, str]) -> float:
    """Seconds until an engine must answer, from vLLM's own variable.

    Raises:
        PreflightError: it is no number.
    """
    text = environ.get("VLLM_ENGINE_READY_TIMEOUT_S", "")
    number = whole_number(text)
    if text and number is None:
        raise PreflightError(
            f"VLLM_ENGINE_READY_TIMEOUT_S={text} is not a number of seconds",
            "set it to a whole number, or unset it",
        )
    return READY_S if number is None else float(number)


class Companion(Protocol):
    """A second program that starts once the engine answers, and ends before it."""

    def start(self, stopped: Callable[[], bool]) -> None:
        """Start it, or return early once ``stopped`` turns true."""

    def watch(self) -> None:
        """Raise ``Glm5Error`` when it has failed."""

    def stop(self) -> None:
        """End it."""


def foreground(
    launch: Launch, args: VllmArgs, timeout_s: float, companion: Companion | None = None
) -> int:
    """Run the engine with its log on the terminal's stderr until it ends or is interrupted.

    Args:
        companion: runs beside it; where it fails, at whatever time, the engine is ended too.

    Raises:
        Unhealthy: it does not answer within ``timeout_s`` seconds.
        ChildFailed: it ended with an error.
    """
    with caught_signals() as caught:

        def halted() -> bool:
            if companion is not None:
                companion.watch()
            return bool(caught)

        child = Child(launch.command, {**os.environ, **launch.environ}, output=2)
        try:
            code = None
            if args.url is not None:
                code = wait_until_ready(child, args.url, timeout_s, stopped=halted)
                if code is None and not caught:
                    if companion is None:
                        note(f"ready: {args.url}/v1 (stop with Ctrl-C)")
                    else:
                        note(f"the engine answers at {args.url}")
                        companion.start(lambda: bool(caught) or child.ended)
            while code is None and not caught:
                code = child.wait(0.5)
                if companion is not None:
                    companion.watch()
        finally:
            if caught:
                note("stopping the engine")
            if companion is not None:
                companion.stop()
            child.stop(GRACE_S, hurry=lambda: len(caught) > 1)
    if caught:
        note("stopped")
        return ExitCode.INTERRUPTED
    if code:
        raise child_failed("the engine", code, "its log above says why")
    return ExitCode.DONE


@contextmanager
def running_server(
    model: Path,
    vllm_args: Sequence[str],
    *,
    port: int | None = None,
    log_path: Path,
    timeout_s: float = READY_S,
    op_backend: str = "auto",
    environ: Mapping[str, str] | None = None,
    say: Say = note,
) -> Iterator[ServerHandle]:
    """Serve ``model`` on 127.0.0.1 while the block runs; afterwards no process of it is left.

    Args:
        model: checkpoint directory.
        vllm_args: flags for vLLM, without ``--host`` and ``--port``.
        port: TCP port, ``None`` for a free one.
        log_path: file for the engine's output; its end is shown when the start fails.
        timeout_s: seconds until it must be healthy.
        op_backend: operator backend of the simulator.
        environ: variables on top of this process's environment; like the user's own they keep
            the defaults of the same name away.
        say: receives progress and the end of the log.

    Raises:
        Glm5Error: as :func:`run`.
    """
    port = free_port() if port is None else port
    user = [*vllm_args, "--host", "127.0.0.1", "--port", str(port)]
    facts = engines.detect()
    engine = engines.choose(facts)
    args = VllmArgs.parse(user)
    merged = {**os.environ, **(environ or {})}
    engines.check_backend(engine, _backend(op_backend, merged))
    engines.check(engine, facts, merged)
    check_all(model, args, engine)
    launch = _plan(engine, facts, model, user, op_backend, merged)
    url = f"http://127.0.0.1:{port}"
    name = args.value("--served-model-name", str(model))
    with log_path.open("wb") as log:
        child = Child(launch.command, {**merged, **launch.environ}, output=log)
    try:
        try:
            code = wait_until_ready(child, url, timeout_s, say=say)
        except Unhealthy:
            _show_tail(log_path, say)
            raise
        if code is not None:
            _show_tail(log_path, say)
            raise child_failed("the engine", code, f"its whole log is {log_path}")
        yield ServerHandle(url, name, child.pid, log_path)
        code = child.wait(0)
        if code is not None:
            _show_tail(log_path, say)
            raise child_failed("the engine", code, f"its whole log is {log_path}")
    finally:
        child.stop(GRACE_S)


def _show_tail(log_path: Path, say: Say) -> None:
    with log_path.open(encoding="utf-8", errors="replace") as log:
        for line in deque(log, TAIL_LINES):
            say(f"  | {line.rstrip()}")
