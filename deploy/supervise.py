"""Start a server, wait until it answers, and end it with every process it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from glm5_ascend.console import note
from glm5_ascend.deploy.health import healthy
from glm5_ascend.errors import ChildFailed, Unhealthy

LEASH = Path(__file__).with_name("leash.py")
POLL_S = 0.1
PROGRESS_S = 10.0
KILL_WAIT_S = 5.0

Say = Callable[[str], None]


class Child:
    """A command in a session and process group of its own, tied to the life of this process.

    Args:
        command: argument vector.
        environ: its whole environment.
        output: where stdout and stderr go: a file or a file descriptor.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], output: IO[bytes] | int
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(LEASH), str(os.getpid()), *command],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id of the command; also the id of its process group and session."""
        return self._process.pid

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or ``None`` when it still runs after ``timeout_s``."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    @property
    def ended(self) -> bool:
        """Whether the command itself has ended."""
        return self._process.poll() is not None

    def members(self) -> list[int]:
        """Return the living processes of the group and session, zombies left out."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # After the name in parentheses: state, parent, group, session.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if self.pid in (int(fields[2]), int(fields[3])) and fields[0] not in "ZX":
                found.append(int(entry.name))
        return found

    def stop(self, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """End the command and everything it started; return when no process is left.

        The command itself is asked first (SIGTERM), so that it can end its workers in order. What
        is left after ``grace_s``, or once the command is gone, gets SIGTERM and then SIGKILL.

        Args:
            grace_s: seconds that the command has, and a third of it for what it leaves behind.
            hurry: polled meanwhile; true goes straight to SIGKILL.
        """
        if not self.ended:
            self._process.terminate()
        self._until(lambda: self.ended or hurry(), grace_s)
        if self.members() and not hurry():
            self._signal_all(signal.SIGTERM)
            self._until(lambda: not self.members() or hurry(), grace_s / 3)
        if self.members():
            self._signal_all(signal.SIGKILL)
        self._until(lambda: self.ended and not self.members(), KILL_WAIT_S)

    def _signal_all(self, signum: int) -> None:
        for pid in self.members():
            try:
                os.kill(pid, signum)
            except ProcessLookupError:
                continue

    @staticmethod
    def _until(condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            time.sleep(POLL_S / 2)


def describe_exit(code: int) -> str:
    """Return an exit code in words; ``subprocess`` gives signals as negative numbers."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def child_failed(what: str, code: int, hint: str) -> ChildFailed:
    """Return the error for a child that ended with ``code``."""
    if code == -signal.SIGKILL:
        hint = "the kernel may have run out of memory: see `dmesg`, or use a smaller model"
    return ChildFailed(f"{what} ended with {describe_exit(code)}", hint)


def wait_until_ready(
    child: Child,
    url: str,
    timeout_s: float,
    *,
    say: Say = note,
    stopped: Callable[[], bool] = lambda: False,
) -> int | None:
    """Wait until the server at ``url`` is healthy, its process ends or ``stopped`` turns true.

    Args:
        child: the server's process.
        url: base URL, without ``/health``.
        timeout_s: seconds to wait.
        say: receives a line of progress every ten seconds.
        stopped: polled ten times a second.

    Returns:
        The exit code when the process ended, else ``None``.

    Raises:
        Unhealthy: no answer in time; the process still runs.
    """
    start = time.monotonic()
    reported = 0.0
    while not stopped():
        code = child.wait(POLL_S)
        if code is not None:
            return code
        if healthy(url):
            break
        elapsed = time.monotonic() - start
        if elapsed > timeout_s:
            raise Unhealthy(
                f"the engine does not answer at {url}/health after {timeout_s:.0f} s",
                "read its log above; VLLM_ENGINE_READY_TIMEOUT_S (seconds) allows more time",
            )
        if elapsed - reported >= PROGRESS_S:
            reported = elapsed
            say(f"waiting for the engine: {elapsed:.0f} s")
    return None


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in the yielded list instead of dying of them."""
    caught: list[int] = []

    def catch(signum: int, frame: FrameType | None) -> None:
        caught.append(signum)

    if threading.current_thread() is not threading.main_thread():
        yield caught  # Python allows handlers in the main thread only
        return
    previous = {s: signal.signal(s, catch) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield caught
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
