"""Runs the worker; what a kernel does to it becomes a row: a fault, a hang, a used-up budget."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.gpu_bench.shapes import Shape

Row = dict[str, Any]
WORKER = (sys.executable, "-m", "tools.gpu_bench.worker")
_ROOT = Path(__file__).resolve().parents[2]


class WorkerError(Exception):
    """The worker ended before it came to a case; its own output says why."""


@dataclass(slots=True)
class Settings:
    """What a run is made of.

    Args:
        budget: seconds of the whole run; whatever is at work then is stopped.
        seconds: of each race, at most.
        patience: seconds that one contestant may be silent.
        seed: of the inputs.
        peers: folder of wheels.
        jit: let peers compile for minutes.
        device, backend: "cuda" and "triton", but for tests.
        command: of the worker; the options follow as one JSON argument.
    """

    budget: float
    seed: int
    peers: str
    seconds: float = 3.0
    patience: float = 60.0
    jit: bool = False
    device: str = "cuda"
    backend: str = "triton"
    command: Sequence[str] = WORKER


@dataclass(slots=True)
class _State:
    pending: list[Shape]
    omit: dict[str, list[str]] = field(default_factory=dict)
    streams: dict[str, list[str]] = field(default_factory=dict)
    device: Row = field(default_factory=dict)
    current: str = ""
    stage: str = ""
    at_work: Row | None = None


def supervise(
    shapes: Sequence[Shape], settings: Settings, clock: Callable[[], float] = time.monotonic
) -> Iterator[Row]:
    """Rows in the order in which they come to be, each with ``device``, the worker's facts.

    Raises:
        WorkerError: see there.
    """
    state, end = _State(list(shapes)), clock() + settings.budget
    while state.pending and clock() < end:
        state.current, state.stage, state.at_work = "", "", None
        with _Worker(state, settings, end - clock()) as worker:
            reason = yield from _listen(worker, state, settings, end, clock)
            if reason == _LATE or not state.pending:
                break
            # A worker that has no more to say may take a while to leave.
            code = worker.ended(0 if reason else min(_LEAVING_S, max(1.0, end - clock())))
            if code == 0:
                break
        if not state.current:
            raise WorkerError(f"the worker ended with code {code} before it came to a case")
        yield from _blame(state, reason or f"its process ended with code {code}")
    for shape in state.pending:
        reason = f"the budget of {settings.budget:.0f} s was used up"
        yield _case_row(shape) | {"status": "not run", "reason": reason, "device": state.device}


_LATE = "late"
_LEAVING_S = 20.0


def _listen(
    worker: _Worker, state: _State, settings: Settings, end: float, clock: Callable[[], float]
) -> Iterator[Row]:
    """Yield the worker's rows until it ends; return why it must be stopped, or an empty text."""
    while True:
        left = end - clock()
        if left <= 0:
            return _LATE
        try:
            event = worker.events.get(timeout=min(left, settings.patience))
        except queue.Empty:
            if end - clock() <= 0:
                return _LATE
            return f"nothing was heard of it for {settings.patience:.0f} s"
        if event is None:
            return ""
        kind = event.pop("event")
        if kind == "device":
            state.device = event
        elif kind == "case":
            state.current, state.at_work = event["case"], None
        elif kind == "stage":
            state.stage, state.at_work = event["stage"], event["row"]
        elif kind == "row":
            row = event["row"]
            state.omit.setdefault(row["case"], []).append(row["contestant"])
            yield row | {"device": state.device}
        elif kind == "done":
            state.pending = [s for s in state.pending if s.name != event["case"]]


def _blame(state: _State, reason: str) -> Iterator[Row]:
    """Whoever was at work is not tried again, except once more without a graph."""
    case, row = state.current, state.at_work
    name = row["contestant"] if row else "inputs"
    shape = next((s for s in state.pending if s.name == case), None)
    if shape is None:  # it was through with the case, and died between two
        return
    if name == "inputs":
        state.pending.remove(shape)
    if name in state.omit.get(case, []):  # its own row says that it spoiled the device
        return
    streams = state.streams.setdefault(case, [])
    if state.stage == "capture" and name not in streams:
        streams.append(name)
        return
    row = (row or _case_row(shape)) | {"status": "failed", "device": state.device}
    yield row | {"reason": f"{reason} ({state.stage or 'set up'})"}
    state.omit.setdefault(case, []).append(name)


def _case_row(shape: Shape) -> Row:
    return {
        "case": shape.name, "kernel": shape.kernel, "title": shape.title, "contestant": "all",
        "kind": "none", "dtype": shape.dtype, "case_dtype": shape.dtype,
        "floor_us": shape.cost.floor_us, "goal": None if shape.goal is None else asdict(shape.goal),
    }  # fmt: skip


class _Worker:
    """A worker process and its events, of which None is the last."""

    def __init__(self, state: _State, settings: Settings, budget: float) -> None:
        options = {
            "shapes": [asdict(shape) for shape in state.pending], "budget": budget,
            "omit": state.omit, "streams": state.streams, "seed": settings.seed,
            "peers": settings.peers, "jit": settings.jit, "seconds": settings.seconds,
            "device": settings.device, "backend": settings.backend,
        }  # fmt: skip
        self.events: queue.Queue[Row | None] = queue.Queue()
        self._process = subprocess.Popen(
            [*settings.command, json.dumps(options)], stdout=subprocess.PIPE, text=True, cwd=_ROOT,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self.events.put(json.loads(line))
            except ValueError:  # cut off where the process died
                break
        self.events.put(None)

    def ended(self, seconds: float) -> int:
        """Exit code; a worker that does not leave by itself within ``seconds`` is stopped."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return self._process.returncode

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
