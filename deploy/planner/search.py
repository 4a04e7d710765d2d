"""Choose: reject with reasons, rate every pair in closed form, simulate the best, rank again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glm5_ascend.deploy.performance.engine import Traffic
from glm5_ascend.deploy.performance.parameters import Parameters
from glm5_ascend.deploy.performance.scenario import Deployment, run, transfer_seconds
from glm5_ascend.deploy.performance.simulate import Load, Run
from glm5_ascend.deploy.planner.analytic import Times, times
from glm5_ascend.deploy.planner.candidates import Candidate, Choices, buffsize, candidates
from glm5_ascend.deploy.planner.targets import Targets

# A prefill group is not loaded beyond this: queues in front of it grow without end.
_MOST_BUSY = 0.9
_REQUESTS_PER_SEQUENCE, _MOST_REQUESTS, _LEAST_REQUESTS = 4, 512, 32
# Users beyond so many times the places change nothing but the queue.
_QUEUED = 4


@dataclass(frozen=True, slots=True)
class Point:
    """One deployment at one load, in closed form and, for the best, simulated.

    Attributes:
        sequences: per decoding rank.
        ttft, tpot: means in seconds.
        throughput: output tokens per second of the whole hardware.
        bottleneck: what limits it.
        run: the simulation's result.
    """

    first: Candidate
    second: Candidate | None
    sequences: int
    ttft: float
    tpot: float
    throughput: float
    bottleneck: str
    run: Run | None = None

    @property
    def decoding(self) -> Candidate:
        """The candidate whose steps decode."""
        return self.second or self.first

    @property
    def name(self) -> str:
        """The layout as text."""
        if self.second is None:
            return str(self.first.settings.group)
        return f"p={self.first.settings.group},d={self.second.settings.group}"

    @property
    def values(self) -> tuple[float, float, float]:
        """Throughput, TTFT, TPOT: simulated where they are."""
        if self.run is not None:
            return self.run.throughput, self.run.ttft, self.run.tpot
        return self.throughput, self.ttft, self.tpot


@dataclass(frozen=True, slots=True)
class Search:
    """The outcome: the best first, the curve of all, and why others were left out."""

    best: tuple[Point, ...]
    points: tuple[Point, ...]
    rejected: dict[str, int]
    nearest: tuple[Point, ...]
    layouts: int
    evaluations: int


def search(
    targets: Targets, choices: Choices, parameters: Parameters, index_every: int, top: int
) -> Search:
    """Find the best deployments for ``targets``; ``best`` is empty where none meets the limits."""
    every = candidates(targets, choices)
    rejected: Counter[str] = Counter()
    usable: dict[str, list[Candidate]] = {"mixed": [], "prefill": [], "decode": []}
    for candidate in every:
        if candidate.reason is None:
            usable[candidate.settings.role].append(candidate)
        else:
            rejected[_kind(candidate.reason)] += 1
    timed = {
        role: times(targets, found, parameters, index_every)
        for role, found in usable.items()
        if found
    }
    points = _mixed_points(targets, usable["mixed"], timed.get("mixed"))
    if "prefill" in timed and "decode" in timed:
        points += _split_points(targets, usable, timed, parameters)
    if targets.rate is not None and timed and not points:
        rejected["cannot keep up with the offered rate"] = sum(
            len(found) for found in usable.values()
        )
    good = []
    for point in points:
        if point.tpot > targets.tpot:
            rejected["TPOT above the limit"] += 1
        elif point.ttft > targets.ttft:
            rejected["TTFT above the limit"] += 1
        else:
            good.append(point)
    met: list[Point] = []
    for point in _distinct(sorted(good, key=lambda p: -p.throughput), 2 * top):
        found = _simulated(targets, point, parameters, index_every)
        if _meets(targets, found):
            met.append(found)
        else:
            rejected["limits missed in the simulation"] += 1
        if len(met) == top:
            break
    met.sort(key=lambda p: -p.values[0])
    close = sorted(points, key=lambda p: max(p.tpot / targets.tpot, p.ttft / targets.ttft))
    return Search(
        best=tuple(met[:top]),
        points=tuple(points),
        rejected={reason: count for reason, count in rejected.items() if count},
        nearest=tuple(_distinct(close, 3)),
        layouts=len(every),
        evaluations=sum(found.evaluations for found in timed.values()),
    )


def _kind(reason: str) -> str:
    """A reason without its numbers, so that equal causes are counted together."""
    if reason.startswith("REFUSED"):
        return reason.removeprefix("REFUSED: ").split(";")[0]
    return reason.split("(")[0].strip().removeprefix("DOES NOT FIT: ")


def _meets(targets: Targets, point: Point) -> bool:
    _, ttft, tpot = point.values
    return point.run is not None and ttft <= targets.ttft and tpot <= targets.tpot


def _distinct(points: Sequence[Point], most: int) -> list[Point]:
    """The first of each layout, up to ``most``; variants of one layout crowd nothing out."""
    found: dict[str, Point] = {}
    for point in points:
        if len(found) == most:
            break
        found.setdefault(point.name, point)
    return list(found.values())


def _mixed_points(targets: Targets, found: Sequence[Candidate], timed: Times | None) -> list[Point]:
    if timed is None:
        return []
    points = []
    for row, candidate in enumerate(found):
        group = candidate.settings.group
        ranks = group.dp * group.copies
        for column, seqs in enumerate(timed.sequences[row]):
            if seqs > candidate.capacity:
                continue
            held = ranks * seqs
            # Prompts of one instance interrupt all of its decodes.
            alone = targets.output * timed.tpot[row, column]
            stalls = group.dp * seqs * timed.fill[row, column]
            wanted = targets.concurrency or (targets.rate or 0) * (alone + stalls)
            if wanted < held / 2 and column:
                continue
            life = alone + stalls * min(wanted / held, 1)
            waves = max(wanted / held - 1, 0) if targets.rate is None else 0
            throughput = min(held, wanted) * targets.output / life
            if targets.rate is not None:
                throughput = min(throughput, targets.rate * targets.output)
                if held < targets.rate * life:
                    continue
            busy = stalls / (alone + stalls)
            ttft = timed.fill[row, column] * (1 + busy) + waves * life
            name = "prefill between decodes" if busy > 0.5 else "decode steps"
            tpot = float(life / targets.output)
            rated = float(ttft), tpot, float(throughput), name
            points.append(Point(candidate, None, int(seqs), *rated))
    return points


def _split_points(
    targets: Targets,
    usable: dict[str, list[Candidate]],
    timed: dict[str, Times],
    parameters: Parameters,
) -> list[Point]:
    """Pairs of prefill and decode groups that together take all servers and agree on the cache."""
    points = []
    filling = _best_prefills(usable["prefill"], timed["prefill"], targets)
    for row, decode in enumerate(usable["decode"]):
        for first, capacity, alone in filling.get(_key(targets, decode), []):
            pair = Deployment(first.settings, decode.settings)
            moved = transfer_seconds(pair, targets.prompt, parameters)
            for column, seqs in enumerate(timed["decode"].sequences[row]):
                if seqs > decode.capacity:
                    continue
                tpot = float(timed["decode"].tpot[row, column])
                held = float(decode.settings.group.dp * seqs)
                made = _pair(targets, held, tpot, capacity, alone, moved)
                if made is not None:
                    points.append(Point(first, decode, int(seqs), *made))
    return points


def _pair(
    targets: Targets, held: float, tpot: float, capacity: float, alone: float, moved: float
) -> tuple[float, float, float, str] | None:
    """TTFT, TPOT, throughput and bottleneck of a pair, or None where it cannot take the load."""
    life = targets.output * tpot
    by_decode = held / life
    if targets.rate is not None:
        rate = targets.rate
        if rate > by_decode or rate > _MOST_BUSY * capacity:
            return None
        busy = rate / capacity
        ttft = alone * (1 + busy / (2 * (1 - busy))) + moved + tpot
        return ttft, tpot, rate * targets.output, "the offered rate"
    wanted = float(targets.concurrency or 1)
    if held > 2 * wanted:
        return None
    rate = min(by_decode, capacity, wanted / (life + alone + moved))
    # Whoever does not decode waits for prefill or for a place.
    ttft = max(wanted / rate - life, alone + moved)
    limits = {by_decode: "decode: places in the cache", capacity: "prefill"}
    return ttft, tpot, rate * targets.output, limits.get(rate, "the concurrency")


def _key(targets: Targets, decode: Candidate) -> tuple[int, str]:
    return targets.hardware.servers - decode.servers, decode.settings.kv


def _best_prefills(
    found: Sequence[Candidate], timed: Times, targets: Targets
) -> dict[tuple[int, str], list[tuple[Candidate, float, float]]]:
    """Per servers and cache: the prefill group of most prompts/s, and the one of least time."""
    kept: dict[tuple[int, str], list[tuple[Candidate, float, float]]] = {}
    for row, candidate in enumerate(found):
        group = candidate.settings.group
        alone = float(timed.fill[row, 0])
        packed = max(candidate.settings.max_num_batched_tokens / targets.fresh, 1.0)
        capacity = group.dp * group.copies / alone * min(packed, 1.0)
        key = (candidate.servers, candidate.settings.kv)
        kept.setdefault(key, []).append((candidate, capacity, alone))
    return {
        key: list({id(item[0]): item for item in _extremes(items)}.values())
        for key, items in kept.items()
    }


def _extremes(
    items: list[tuple[Candidate, float, float]],
) -> list[tuple[Candidate, float, float]]:
    return [max(items, key=lambda item: item[1]), min(items, key=lambda item: item[2])]


def deployment(targets: Targets, point: Point, index_every: int) -> Deployment:
    """The point's deployment with the numbers of sequences that it was rated with."""
    decoding = point.decoding.settings
    rows = point.sequences * (1 + decoding.draft_tokens)
    size = buffsize(targets, decoding.group, rows)
    if point.second is None:
        first = replace(point.first.settings, max_num_seqs=point.sequences, buffsize=size)
        return Deployment(first, None, index_every)
    second = replace(
        decoding, max_num_seqs=point.sequences, max_num_batched_tokens=rows, buffsize=size
    )
    return Deployment(point.first.settings, second, index_every)


def _simulated(targets: Targets, point: Point, parameters: Parameters, index_every: int) -> Point:
    held = point.decoding.settings.group.dp * point.decoding.settings.group.copies * point.sequences
    users = targets.concurrency or max(round(held * 1.5), 1)
    most = min(users, max(_QUEUED * held, _MOST_REQUESTS))
    count = int(np.clip(_REQUESTS_PER_SEQUENCE * most, _LEAST_REQUESTS, _MOST_REQUESTS))
    traffic = Traffic(
        targets.prompt,
        targets.output,
        targets.prompt - targets.fresh,
        round(targets.prompt * targets.shared),
        targets.accepted_with(point.decoding.settings.draft_tokens),
        warm=True,
    )
    # Users do not come all at once; a benchmark that starts so measures its own first queue.
    rate = targets.rate or point.throughput / targets.output
    load = Load(max(count, most), most, rate)
    found = run(deployment(targets, point, index_every), traffic, load, parameters)
    if found is not None and users > most:
        waiting = (users - most) * targets.output / found.throughput
        found = replace(found, ttft=found.ttft + waiting)
    return replace(point, run=found)
