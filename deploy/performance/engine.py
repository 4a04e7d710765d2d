"""One instance in the simulation: synchronised DP ranks, chunked prefill, admission by cache."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from glm5_ascend.deploy.performance.step import StepModel


@dataclass(slots=True)
class Request:
    """One request; times in seconds, NaN until they happen; ``pace`` scales its accepted tokens."""

    issued: float
    pace: float = 1.0
    rank: int = -1
    left: int = 0
    first: float = math.nan
    finished: float = math.nan


@dataclass(frozen=True, slots=True)
class Traffic:
    """What every request of a run is like.

    Attributes:
        prompt, output: tokens.
        cached: prompt tokens that the prefilling rank has already, once it has filled one prompt.
        shared: prompt tokens whose blocks the requests of a decoding rank share.
        accepted: tokens per decode step, 1 without MTP.
        warm: the cached tokens are there from the start.
    """

    prompt: int
    output: int
    cached: int
    shared: int
    accepted: float
    warm: bool = False

    def spread(self, drafts: int) -> float:
        """Relative standard deviation of a request's mean acceptance over its own steps.

        Each draft is taken to be accepted with one probability until the first miss; a request of
        many steps is closer to the mean. Without it all requests of a wave would end in one step.
        """
        if self.accepted <= 1 or not drafts:
            return 0.0
        low, high = 0.0, 1.0
        for _ in range(40):
            chance = (low + high) / 2
            mean = sum(chance**i for i in range(drafts + 1))
            low, high = (chance, high) if mean < self.accepted else (low, chance)
        lengths = [chance**i * (1 - chance) for i in range(drafts)] + [chance**drafts]
        variance = sum(p * (i + 1 - self.accepted) ** 2 for i, p in enumerate(lengths))
        return math.sqrt(variance / (self.output / self.accepted)) / self.accepted


@dataclass(frozen=True, slots=True)
class Limits:
    """Per DP rank: sequences, tokens of a step, tokens of cache."""

    sequences: int
    batch: int
    cache: float


@dataclass(slots=True)
class Engine:
    """The state of one instance; ``role`` is ``mixed``, ``prefill`` or ``decode``.

    Attributes:
        held: requests of all ranks, waiting ones included.
    """

    model: StepModel
    limits: Limits
    traffic: Traffic
    role: str
    at: float = math.inf
    steps: int = 0
    held: int = 0
    load: list[int] = field(init=False)
    waiting: list[deque[Request]] = field(init=False)
    filling: list[deque[Request]] = field(init=False)
    seqs: np.ndarray = field(init=False)
    tokens: np.ndarray = field(init=False)
    room: list[float] = field(init=False)
    ends: list[tuple[int, int, Request]] = field(init=False)
    fresh: list[Request] = field(init=False)
    warm: list[bool] = field(init=False)
    _order: int = 0

    def __post_init__(self) -> None:
        ranks = self.model.work.dp
        self.load, self.warm = [0] * ranks, [self.traffic.warm] * ranks
        self.waiting = [deque() for _ in range(ranks)]
        self.filling = [deque() for _ in range(ranks)]
        self.seqs, self.tokens = np.zeros(ranks), np.zeros(ranks)
        self.room = [self.limits.cache - self.traffic.shared] * ranks
        self.ends, self.fresh = [], []

    @property
    def _need(self) -> float:
        """Cache tokens of a request beyond the shared ones, until its end."""
        output = 0 if self.role == "prefill" else self.traffic.output
        return self.traffic.prompt - self.traffic.shared + output

    @property
    def most(self) -> int:
        """Sequences that a rank holds at once."""
        each = 1 + self.model.work.drafts
        by_batch = self.limits.batch // each if self.role == "decode" else self.limits.sequences
        by_cache = int((self.limits.cache - self.traffic.shared) // self._need)
        return max(min(self.limits.sequences, by_batch, by_cache), 0)

    def add(self, request: Request, now: float) -> None:
        """Queue a request at the rank with the fewest."""
        request.rank = self.load.index(min(self.load))
        known = self.traffic.cached if self.warm[request.rank] else 0
        request.left = max(self.traffic.prompt - known, 1)
        self.warm[request.rank] = True
        self.load[request.rank] += 1
        self.held += 1
        self.waiting[request.rank].append(request)
        if self.at == math.inf:
            self.at = now

    def _admit(self) -> None:
        most, need = self.most, self._need
        for rank, queue in enumerate(self.waiting):
            while queue and self.room[rank] >= need:
                if self.seqs[rank] + len(self.filling[rank]) >= most:
                    break
                self.room[rank] -= need
                request = queue.popleft()
                if self.role == "decode":
                    self._decode(request, self.traffic.prompt)
                    self.fresh.append(request)
                else:
                    self.filling[rank].append(request)

    def _decode(self, request: Request, context: float) -> None:
        accepted = self.traffic.accepted * request.pace
        self.seqs[request.rank] += 1
        self.tokens[request.rank] += context
        # A mixed rank's prefill has made the first token already.
        left = self.traffic.output - (self.role == "mixed")
        self._order += 1
        ends = self.steps + max(math.ceil(left / accepted), 1)
        heappush(self.ends, (ends, self._order, request))

    def step(self, until: float) -> list[Request]:
        """Run one step, or as many equal ones as end before ``until``; return who is done.

        Done means finished, or for a prefill instance filled. ``at`` moves to the end.
        """
        self._admit()
        ranks = len(self.load)
        chunk, keys = np.zeros(ranks), np.zeros(ranks)
        filled = self._fill(chunk, keys)
        if not (filled or chunk.any() or self.ends):
            self.at = math.inf
            return []
        context = self.tokens / np.maximum(self.seqs, 1)
        seconds = self.model.seconds(self.seqs, context, chunk, keys)
        count = 1
        # First tokens are told apart, so a step with fresh requests stands alone.
        if not chunk.any() and not self.fresh:
            count = self.ends[0][0] - self.steps
            if until < math.inf:
                count = min(count, max(math.ceil((until - self.at) / seconds), 1))
        if count > 1:
            middle = context + self.traffic.accepted * (count - 1) / 2 * (self.seqs > 0)
            seconds = self.model.seconds(self.seqs, middle, chunk, keys)
        self.at += count * seconds
        self.steps += count
        self.tokens += self.seqs * self.traffic.accepted * count
        for request in self.fresh:
            request.first = self.at
        self.fresh.clear()
        return self._finish(filled)

    def _fill(self, chunk: np.ndarray, keys: np.ndarray) -> list[Request]:
        """Hand out the step's prompt tokens; return the requests whose prompt ends in it."""
        each, traffic = 1 + self.model.work.drafts, self.traffic
        done: list[Request] = []
        for rank, queue in enumerate(self.filling):
            budget = self.limits.batch - int(self.seqs[rank]) * each
            weighted = 0.0
            while queue and budget > 0:
                request = queue[0]
                part = min(budget, request.left)
                weighted += part * (traffic.prompt - request.left + part / 2)
                request.left -= part
                budget -= part
                chunk[rank] += part
                if request.left:
                    break
                done.append(queue.popleft())
            if chunk[rank]:
                keys[rank] = weighted / chunk[rank]
        return done

    def _release(self, request: Request) -> None:
        self.load[request.rank] -= 1
        self.held -= 1

    def _finish(self, filled: list[Request]) -> list[Request]:
        done: list[Request] = []
        for request in filled:
            if self.role == "prefill":
                self.room[request.rank] += self._need
                self._release(request)
                done.append(request)
            else:
                request.first = self.at
                self._decode(request, self.traffic.prompt)
        while self.ends and self.ends[0][0] <= self.steps:
            request = heappop(self.ends)[2]
            rank = request.rank
            self.seqs[rank] -= 1
            self.tokens[rank] -= min(
                self.traffic.prompt + self.traffic.output, float(self.tokens[rank])
            )
            self.room[rank] += self._need
            self._release(request)
            request.finished = self.at
            done.append(request)
        return done
