"""How the benchmark takes time, watches the machine and verifies before it times."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from tools.bench.case import Absent, Case, Contestant, WrongResult, near
from tools.bench.machine import Affinity, Load, Ticks, parse_ticks, settle
from tools.bench.runner import measure
from tools.bench.timing import Entrant, quantile, race
from tools.bench.topk import best

STAT = """cpu  10 0 10 80 0 0 0 0 0 0
cpu0 100 10 50 800 40 3 2 7 0 0
cpu11 1 2 3 4 5 6 7 8 9 10
intr 5
"""


class FakeClock:
    """Nanoseconds that pass only where somebody lets them."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[str] = []

    def __call__(self) -> int:
        return self.now

    def work(self, name: str, microseconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += round(1000 * microseconds)
            self.log.append(name)

        return run


def test_quantiles_lie_between_neighbours() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.2) == 2.0
    assert quantile([7.0], 0.8) == 7.0


def test_contestants_take_turns_and_are_warm_before_the_first_sample() -> None:
    clock = FakeClock()
    entrants = {name: Entrant(clock.work(name, us)) for name, us in (("a", 1000), ("b", 3000))}
    timings = race(entrants, 0.5, set_threads=lambda _: None, clock=clock)
    assert (timings["a"].median, timings["b"].median) == (1000, 3000)
    assert timings["a"].n == timings["b"].n >= 9
    warm = clock.log.index("b")
    assert clock.log[:warm] == ["a"] * 30
    # After that every round holds one untimed and one timed call of each.
    calls = clock.log[warm + 10 :]
    rounds = [tuple(calls[i : i + 4]) for i in range(0, len(calls), 4)]
    assert set(rounds) == {("a", "a", "b", "b"), ("b", "b", "a", "a")}


def test_samples_of_short_functions_hold_many_calls() -> None:
    clock = FakeClock()
    timing = race({"a": Entrant(clock.work("a", 5))}, 0.01, set_threads=lambda _: None, clock=clock)
    assert timing["a"].repeats == 40
    assert timing["a"].median == 5


def test_every_sample_has_its_number_of_threads() -> None:
    clock, threads = FakeClock(), [0]
    seen: set[tuple[str, int]] = set()

    def entrant(name: str, count: int) -> Entrant:
        work = clock.work(name, 500)

        def run() -> None:
            seen.add((name, threads[0]))
            work()

        return Entrant(run, count)

    entrants = {"one": entrant("one", 1), "two": entrant("two", 2)}
    race(entrants, 0.01, set_threads=lambda n: threads.__setitem__(0, n), clock=clock)
    assert seen == {("one", 1), ("two", 2)}


def test_several_threads_start_when_those_before_have_settled() -> None:
    clock = FakeClock()
    entrants = {
        "one": Entrant(clock.work("one", 500)),
        "two": Entrant(clock.work("two", 500), 2),
    }
    race(
        entrants,
        0.01,
        set_threads=lambda _: None,
        settle=lambda: clock.log.append("settled"),
        clock=clock,
    )
    # Warm-up is not measured, so nothing waits before it.
    first = clock.log.index("settled")
    calls = "".join({"one": "1", "two": "2", "settled": "s"}[name] for name in clock.log[first:])
    assert set(calls.replace("s22", "x").replace("11", "y")) == {"x", "y"}


def test_settling_waits_for_a_busy_thread_and_not_for_ever() -> None:
    stop = threading.Event()
    busy = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    busy.start()
    try:
        start = time.perf_counter()
        settle(0.02)
        assert time.perf_counter() - start >= 0.02
    finally:
        stop.set()
        busy.join()
    start = time.perf_counter()
    settle(5.0)
    assert time.perf_counter() - start < 4


def test_processor_times_are_read_per_processor() -> None:
    ticks = parse_ticks(STAT)
    assert ticks == {0: Ticks(165, 7, 1012), 11: Ticks(19, 8, 36)}
    assert ticks[0] - Ticks(65, 7, 12) == Ticks(100, 0, 1000)


@pytest.mark.parametrize(
    ("load", "quiet"),
    [((0.9, 0.01, 0.0), True), ((0.1, 0.2, 0.0), False), ((0.1, 0.0, 0.2), False)],
)
def test_a_busy_machine_is_said_loudly(load: tuple[float, float, float], quiet: bool) -> None:
    assert Load(*load).quiet is quiet
    assert ("NOT IDLE" in str(Load(*load))) is not quiet


def test_one_thread_goes_to_the_quietest_processor_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, mask: pinned.append(set(mask)))
    affinity = Affinity({0: 0.0, 1: 0.9, 2: 0.1, 3: 0.1})
    for threads in (1, 2):
        affinity.use(threads)
    assert pinned == [{2}, {1, 2, 3}]


def case(*entries: Contestant | Absent) -> Case:
    def enter() -> Iterator[Contestant | Absent]:
        yield from entries

    return Case("topk-random-32k", "lightning_indexer", "title", {}, 4096, enter)


def test_a_wrong_result_is_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    calls = []

    def wrong() -> torch.Tensor:
        calls.append(1)
        return torch.ones(3)

    contestant = Contestant("project", "project", wrong, near(torch.tensor([1.0, 1.0, 1.2])))
    with pytest.raises(WrongResult, match="project: squared distance"):
        measure(case(contestant), 0.01, Affinity({}))
    assert len(calls) == 1


def test_who_is_absent_is_named_and_nobody_else_suffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    result = torch.tensor([1.0, 2.0])
    contestant = Contestant("project", "project", lambda: result, near(result))
    rows, _, absent = measure(case(Absent("peer: not installed"), contestant), 0.01, Affinity({}))
    assert absent == ["peer: not installed"]
    assert [(row["contestant"], row["kind"]) for row in rows] == [
        ("project", "project"),
        ("read 4 MiB from cache", "limit"),
    ]
    assert rows[0]["n"] >= 9
    assert rows[0]["p20"] <= rows[0]["median"] <= rows[0]["p80"]


def test_best_takes_equal_scores_lowest_position_first() -> None:
    scores = torch.tensor([1.0, 3.0, 1.0, 2.0, 1.0])
    assert best(scores, 3).tolist() == [0, 1, 3]
