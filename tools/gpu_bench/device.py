"""How calls are run and timed: on a GPU with cold caches, or on the host where tests do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from tools.gpu_bench.h200 import L2_BYTES

Call = Callable[[], Any]
_WARM_UP = 2


@dataclass(slots=True)
class Prepared:
    """Calls that are ready to be timed.

    Args:
        run: makes all of them once.
        calls: how many they are.
        mode: "graph" (one CUDA graph holds them all), "stream" (they are launched one by one) or
            "host".
        reason: why they are in no graph.
        results: what the last ``run`` returned, per call.
    """

    run: Call
    calls: int
    mode: str
    results: list[Any] = field(default_factory=list)
    reason: str = ""


class Device(Protocol):
    """What the race needs of a device."""

    name: str

    def clock(self) -> float:
        """Seconds, monotonic."""

    def prepare(self, calls: Sequence[Call], *, graph: bool) -> Prepared:
        """Warm up, and put the calls into a graph where that works and ``graph`` allows it."""

    def healthy(self) -> bool:
        """Whether it still computes; a kernel that faults spoils a CUDA context for good."""

    def sample(self, prepared: Prepared) -> float:
        """Microseconds per call of one run with cold caches."""

    def kernels_us(self, prepared: Prepared) -> float | None:
        """Microseconds per call that kernels run, without the gaps; None where nobody knows."""


class Host:
    """The processor that runs Python, for tests; it has no caches to empty."""

    name = "cpu"

    def clock(self) -> float:
        return time.monotonic()

    def prepare(self, calls: Sequence[Call], *, graph: bool) -> Prepared:
        return _sequence(calls, "host", "")

    def healthy(self) -> bool:
        return True

    def sample(self, prepared: Prepared) -> float:
        start = time.perf_counter()
        prepared.run()
        return 1e6 * (time.perf_counter() - start) / prepared.calls

    def kernels_us(self, prepared: Prepared) -> float | None:
        return None


class Cuda:
    """The current CUDA device. Before each sample its L2 is filled with other lines."""

    name = "cuda"

    def __init__(self) -> None:
        self._filler = torch.empty(4 * L2_BYTES, dtype=torch.uint8, device="cuda")

    def clock(self) -> float:
        return time.monotonic()

    def prepare(self, calls: Sequence[Call], *, graph: bool) -> Prepared:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                for call in calls:
                    call()
        torch.cuda.synchronize()
        if not graph:
            return _sequence(calls, "stream", "its graph had killed the process before")
        recorded = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(recorded, stream=stream):
                results = [call() for call in calls]
        except RuntimeError as error:
            torch.cuda.synchronize()
            return _sequence(calls, "stream", _first_line(error))
        return Prepared(recorded.replay, len(calls), "graph", results)

    def healthy(self) -> bool:
        try:
            torch.cuda.synchronize()
            return bool((torch.ones(1, device="cuda") + 1).item() == 2)
        except RuntimeError:
            return False

    def sample(self, prepared: Prepared) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._filler.zero_()
        start.record()
        prepared.run()
        end.record()
        end.synchronize()
        return 1e3 * float(start.elapsed_time(end)) / prepared.calls

    def kernels_us(self, prepared: Prepared) -> float | None:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            prepared.run()
            torch.cuda.synchronize()
        spent = sum(float(event.self_device_time_total) for event in recorded.key_averages())
        return spent / prepared.calls if spent else None


def _sequence(calls: Sequence[Call], mode: str, reason: str) -> Prepared:
    prepared = Prepared(lambda: None, len(calls), mode, reason=reason)

    def run() -> None:
        prepared.results = [call() for call in calls]

    prepared.run = run
    return prepared


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
