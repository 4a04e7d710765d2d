"""A whole benchmark run, from the first request to the last token: ramp, steady state and drain.

Published throughputs are all output tokens over the whole time, so the same is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from glm5_ascend.deploy.performance.engine import Engine, Request

_MOST_STEPS = 2_000_000
_SEED = 5


@dataclass(frozen=True, slots=True)
class Load:
    """A benchmark: ``requests`` in all, ``concurrency`` at most at once, ``rate`` per second.

    ``rate`` None issues as soon as the concurrency allows.
    """

    requests: int
    concurrency: int
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What a run gives: means over requests, seconds, and output tokens per second."""

    ttft: float
    tpot: float
    throughput: float
    seconds: float
    concurrency: float


def simulate(
    first: Sequence[Engine], second: Sequence[Engine], load: Load, transfer: float = 0.0
) -> Run | None:
    """Run ``load`` through mixed instances, or through prefill and then decode instances.

    Args:
        first: mixed or prefill instances, in their initial state; they are changed.
        second: decode instances; empty for mixed ones.
        transfer: seconds from a filled cache to a request that can decode.

    Returns:
        None where an instance cannot hold a single request.
    """
    if any(engine.most < 1 for engine in (*first, *second)):
        return None
    arrivals: list[tuple[float, int, int, Request]] = []
    issued, order = 0, 0
    last = (second or first)[0]
    spread = last.traffic.spread(last.model.work.drafts)
    paces = 1 + spread * np.random.default_rng(_SEED).standard_normal(load.requests).clip(-3, 3)

    def issue(now: float) -> None:
        nonlocal issued, order
        if issued < load.requests:
            time = now if load.rate is None else max(now, issued / load.rate)
            order += 1
            heappush(arrivals, (time, order, 0, Request(time, float(paces[issued]))))
            issued += 1

    for _ in range(min(load.concurrency, load.requests)):
        issue(0.0)
    done: list[Request] = []
    engines = (*first, *second)
    for _ in range(_MOST_STEPS):
        if len(done) == load.requests:
            break
        engine = min(engines, key=lambda item: item.at)
        if arrivals and arrivals[0][0] <= engine.at:
            time, _, stage, request = heappop(arrivals)
            stages = second if stage else first
            min(stages, key=lambda item: item.held).add(request, time)
            continue
        others = [item.at for item in engines if item is not engine and item.at < math.inf]
        until = min([*others, *([arrivals[0][0]] if arrivals else [])], default=math.inf)
        for request in engine.step(until):
            if engine.role == "prefill":
                order += 1
                heappush(arrivals, (engine.at + transfer, order, 1, request))
            else:
                done.append(request)
                issue(request.finished)
    else:
        raise RuntimeError(f"the simulation has not ended after {_MOST_STEPS} steps")
    return _summary(done, first[0].traffic.output)


def _summary(done: Sequence[Request], output: int) -> Run:
    count = len(done)
    start = min(request.issued for request in done)
    seconds = max(request.finished for request in done) - start
    ttft = sum(request.first - request.issued for request in done) / count
    decode = sum(request.finished - request.first for request in done) / count
    held = sum(request.finished - request.issued for request in done)
    return Run(
        ttft=ttft,
        tpot=decode / max(output - 1, 1),
        throughput=count * output / seconds,
        seconds=seconds,
        concurrency=held / seconds,
    )
