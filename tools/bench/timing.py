"""Times several functions in turns, so that whatever drifts meanwhile hits all of them alike."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# A sample shorter than this says more about the clock and the interpreter than about the function.
SAMPLE_NS = 200_000
# A longer one does not notice what the caches held before.
LONG_NS = 20_000_000
WARM_UP_NS = 30_000_000
WARM_UP_CALLS = 3

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Entrant:
    """A function to time on ``threads`` threads; what it returns is dropped."""

    run: Callable[[], object]
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds per call over ``n`` samples of ``repeats`` calls each."""

    median: float
    least: float
    p20: float
    p80: float
    n: int
    repeats: int


def quantile(values: Sequence[float], share: float) -> float:
    """The ``share`` quantile of ``values``, linear between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def race(
    entrants: Mapping[str, Entrant],
    seconds: float,
    *,
    set_threads: Callable[[int], None],
    settle: Callable[[], object] = lambda: None,
    least: int = 9,
    clock: Clock = time.perf_counter_ns,
) -> dict[str, Timing]:
    """Time every entrant, in a new random order each round, for about ``seconds`` altogether.

    All are warmed up before the first is timed. Before the sample of a function of less than 20 ms
    there is one call that is not timed: it pays for the caches that the entrant before left behind
    and for waking threads. The order is drawn with a fixed seed.

    Args:
        entrants: by name.
        seconds: no further round begins after these, once there were ``least``.
        set_threads: called with the entrant's number of threads before its calls.
        settle: called before those of an entrant with more than one.
        least: samples at least.
        clock: nanoseconds, monotonic.
    """
    samples: dict[str, list[float]] = {name: [] for name in entrants}
    order = list(entrants)
    shuffle = random.Random(0).shuffle
    with _no_collection():
        usual = {}
        for name, entrant in entrants.items():
            set_threads(entrant.threads)
            usual[name] = _warm_up(entrant.run, clock)
        repeats = {name: max(1, round(SAMPLE_NS / spent)) for name, spent in usual.items()}
        end = clock() + seconds * 1e9
        while clock() < end or len(samples[order[0]]) < least:
            shuffle(order)
            for name in order:
                set_threads(entrants[name].threads)
                if entrants[name].threads > 1:
                    settle()
                run = entrants[name].run
                if usual[name] < LONG_NS:
                    run()
                samples[name].append(_sample(run, repeats[name], clock))
    return {name: _timing(values, repeats[name]) for name, values in samples.items()}


def _warm_up(run: Callable[[], object], clock: Clock) -> float:
    """Nanoseconds that a call usually takes, never 0."""
    spent: list[int] = []
    while len(spent) < WARM_UP_CALLS or (sum(spent) < WARM_UP_NS and len(spent) < 1000):
        start = clock()
        run()
        spent.append(clock() - start)
    return max(1.0, quantile(spent, 0.5))


def _sample(run: Callable[[], object], repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats / 1000


def _timing(values: Sequence[float], repeats: int) -> Timing:
    middle, low, high = (quantile(values, share) for share in (0.5, 0.2, 0.8))
    return Timing(middle, min(values), low, high, len(values), repeats)


@contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
