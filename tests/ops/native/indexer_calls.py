"""Calls of the indexer's kernels with what they must return, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from glm5_ascend.ops.verify import compare, formula
from tests.ops.native.calls import Array, Call, Out
from tests.ops.native.numbers import CODES, stored, value

ENTRIES = ("g5_lightning_indexer", "g5_lightning_indexer_quant")


@dataclass(frozen=True)
class Problem:
    """One call. ``lengths``: (query tokens, keys) of each request; ``block`` 0: no block table;
    ``gap``: unused columns between key rows; ``scores``: exact scores instead of random ones."""

    label: str
    dtype: str = "bf16"
    heads: int = 32
    dim: int = 128
    lengths: tuple[tuple[int, int], ...] = ((1, 700),)
    count: int = 64
    causal: bool = True
    by_score: bool = False
    block: int = 0
    gap: int = 0
    distinct: int = 0
    scores: Array | None = None

    def __str__(self) -> str:
        return f"{self.label}-{self.dtype}"


@dataclass(frozen=True)
class Built:
    """A call and the oracle: F64 ``scores`` [rows, S], NaN as -inf, of ``visible`` [rows] keys.

    ``where``: rows of the keys of each request.
    """

    problem: Problem
    call: Call
    scores: Array
    low: Array
    visible: Array
    where: list[Array]

    def judge(self, results: list[Array]) -> None:
        """Fail unless positions and values are right."""
        problem = self.problem
        rows = self.visible > 0
        limit = self._limit()
        order = "score" if problem.by_score else "position"
        compare.require(
            compare.selection(
                torch.from_numpy(results[0]),
                torch.from_numpy(self.scores),
                limit,
                visible=torch.from_numpy(self.visible),
                order=order,
                name=str(problem),
            )
        )
        if problem.scores is not None or problem.distinct:
            expected = [self._exact(row) for row in range(len(rows))]
            np.testing.assert_array_equal(results[0], expected)
        if len(results) > 1:
            self._judge_values(results[0], results[1], limit)

    def rows(self, number: int) -> slice:
        """Query rows of a request."""
        first = sum(n for n, _ in self.problem.lengths[:number])
        return slice(first, first + self.problem.lengths[number][0])

    def alone(self, number: int) -> Call:
        """The call with one request only, whose keys were copied into one piece."""
        arguments = list(self.call.arguments)
        quant = self.problem.dtype == "int8"
        keys, scale, spans = (1, 8, 14) if quant else (2, None, 10)
        where = self.where[number]
        for copied in (keys, scale):
            if copied is not None:
                array = arguments[copied]
                assert isinstance(array, np.ndarray)
                arguments[copied] = np.ascontiguousarray(array[where])
        rows = self.rows(number)
        span = np.array([rows.start, rows.stop - rows.start, 0, len(where)], np.int64)
        arguments[spans - 1 : spans + 4] = [1, span, None, 0, 0]
        return Call(self.call.entry, tuple(arguments))

    def _limit(self) -> float:
        if self.problem.scores is not None:
            return 0.0
        return compare.error_limit(torch.from_numpy(self.scores), torch.from_numpy(self.low))

    def _exact(self, row: int) -> Array:
        scores = self.scores[row, : self.visible[row]]
        chosen = np.array(formula.best_positions(scores, self.problem.count), np.int64)
        if self.problem.by_score:
            chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
        missing = self.problem.count - len(chosen)
        return np.concatenate([chosen, np.full(missing, -1)]).astype(np.int32)

    def _judge_values(self, chosen: Array, values: Array, limit: float) -> None:
        wanted = np.take_along_axis(self.scores, np.maximum(chosen, 0).astype(np.int64), 1)
        wanted = np.where(chosen < 0, -np.inf, wanted)
        same = np.isinf(wanted)
        np.testing.assert_array_equal(values[same], wanted[same])
        assert np.all(np.abs(values[~same] - wanted[~same]) <= limit), self.problem


def build(problem: Problem, seed: int = 0) -> Built:
    """The call of a problem; every request has rows and keys between those of others."""
    gen = np.random.default_rng(seed)
    rows = sum(n for n, _ in problem.lengths) + 2  # the last two belong to no request
    query = _numbers(gen, (rows, problem.heads, problem.dim), problem)
    weights = gen.standard_normal((rows, problem.heads)).astype(np.float32)
    if problem.scores is not None:
        query, weights = _identity(query, weights, problem)
    where, flat, table = _places(problem, gen)
    keys = _numbers(gen, (flat, problem.dim + problem.gap), problem)
    if problem.distinct:
        keys = keys[gen.integers(0, problem.distinct, flat)]
    if problem.scores is not None:
        keys[where[0], 0] = stored(problem.scores, problem.dtype)
    scales: tuple[Array, ...] = ()
    if problem.dtype == "int8":
        scales = (
            gen.uniform(0.5, 1.5, (rows, problem.heads)).astype(np.float16),
            gen.uniform(0.5, 1.5, flat).astype(np.float32),
        )
    call = _call(problem, query, keys, weights, scales, where, table)
    return _with_oracle(problem, call, query, keys, weights, scales, where)


def _numbers(gen: np.random.Generator, shape: tuple[int, ...], problem: Problem) -> Array:
    if problem.dtype == "int8":
        return gen.integers(-128, 128, shape).astype(np.int8)
    return stored(gen.standard_normal(shape), problem.dtype)


def _identity(query: Array, weights: Array, problem: Problem) -> tuple[Array, Array]:
    """relu(k) - relu(-k) = k: with these two heads the score is the key's first number."""
    sign = np.zeros(query.shape)
    sign[:, 0, 0], sign[:, 1, 0] = 1, -1
    return stored(sign, problem.dtype), sign[:, :, 0].astype(np.float32)


def _places(problem: Problem, gen: np.random.Generator) -> tuple[list[Array], int, Array | None]:
    """(rows of each request's keys, rows in all, block table): blocks lie in any order."""
    if not problem.block:
        ends = np.cumsum([5 + k for _, k in problem.lengths])
        where = [np.arange(end - k, end) for end, (_, k) in zip(ends, problem.lengths, strict=True)]
        return where, int(ends[-1]), None
    used = [-(-k // problem.block) for _, k in problem.lengths]
    order = gen.permutation(sum(used) + 3)
    # Entries behind the last block in use may hold anything.
    table = np.full((len(used), max(used) + 1), 1 << 30, np.int32)
    where, first = [], 0
    for b, (blocks, (_, k)) in enumerate(zip(used, problem.lengths, strict=True)):
        table[b, :blocks] = order[first : first + blocks]
        first += blocks
        position = np.arange(k)
        block = table[b, position // problem.block].astype(np.int64)
        where.append(block * problem.block + position % problem.block)
    return where, len(order) * problem.block, table


def _call(
    problem: Problem,
    query: Array,
    keys: Array,
    weights: Array,
    scales: tuple[Array, ...],
    where: list[Array],
    table: Array | None,
) -> Call:
    rows = len(query)
    spans = np.zeros((len(where), 4), np.int64)
    spans[:, 1] = [n for n, _ in problem.lengths]
    spans[:, 0] = np.cumsum(spans[:, 1]) - spans[:, 1]
    if table is None:
        spans[:, 2] = [w[0] if len(w) else 0 for w in where]
    spans[:, 3] = [k for _, k in problem.lengths]
    shared = (
        *(rows, problem.heads, problem.dim, len(where), spans, table),
        *(0 if table is None else table.shape[1], problem.block, problem.count),
        *(int(problem.causal), int(problem.by_score), Out(np.int32, (rows, problem.count))),
    )
    if problem.dtype == "int8":
        query_scale, key_scale = scales
        pairs = (0, weights, CODES["f16"], query_scale, CODES["f32"], key_scale, 1)
        return Call(ENTRIES[1], (query, keys, keys.shape[1], *pairs, *shared))
    head = (CODES[problem.dtype], query, keys, keys.shape[1], 0, weights)
    return Call(ENTRIES[0], (*head, *shared, Out(np.float32, (rows, problem.count))))


def _with_oracle(
    problem: Problem,
    call: Call,
    query: Array,
    keys: Array,
    weights: Array,
    scales: tuple[Array, ...],
    where: list[Array],
) -> Built:
    rows = len(query)
    width = max(1, *(len(w) for w in where))
    visible = np.zeros(rows, np.int64)
    both = {kind: np.full((rows, width), -np.inf, kind) for kind in (np.float64, np.float32)}
    first = 0
    for w, (n, k) in zip(where, problem.lengths, strict=True):
        mine = slice(first, first + n)
        first += n
        visible[mine] = np.maximum(0, k - n + 1 + np.arange(n)) if problem.causal else k
        scaled = weights[mine] * scales[0][mine].astype(np.float32) if scales else weights[mine]
        for kind, scores in both.items():
            q, rest = value(query[mine]), value(keys[w][:, : problem.dim])
            found = formula.index_scores(q, rest, scaled, kind)
            with np.errstate(invalid="ignore"):
                found = found * scales[1][w].astype(kind) if scales else found
            scores[mine, :k] = formula.without_nan(found)
    return Built(problem, call, both[np.float64], both[np.float32], visible, where)


def _special() -> Array:
    """6000 scores of every kind, with many equal ones around the 64th best."""
    gen = np.random.default_rng(5)
    exact = gen.choice([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0], 6000)
    exact[gen.integers(0, 6000, 30)] = np.inf
    exact[gen.integers(0, 6000, 900)] = np.nan
    exact[gen.integers(0, 6000, 900)] = -np.inf
    return exact


def _mostly_nothing() -> Array:
    """Fewer numbers than are wanted: some of the NaN and -inf must be taken, lowest first."""
    exact = np.where(np.arange(6000) % 2, np.nan, -np.inf)
    exact[[3, 77, 5999]] = [1.0, np.inf, -5.0]
    return exact


def _subnormal() -> Array:
    return np.random.default_rng(6).integers(-40, 40, 6000) * 2.0**-149


def _distributions(length: int) -> dict[str, Array]:
    normal = np.random.default_rng(7).standard_normal(length).astype(np.float32)
    place = np.arange(length)
    return {
        "normal": normal,
        "rising": place * 0.5,
        "falling": -place * 0.5,
        "equal": np.full(length, 3.0),
        "two-values": (place * 7919 % 5 == 0) * 1.0,
        "one-large": np.where(place == length - 1000, 9.0, 0.0),
        "heavy-tail": np.sinh(normal * 8),
        # At the places that a regular sample looks at, all is small.
        "comb": np.where(place % 16 == 0, -1e3 + normal, normal),
        "mostly-zero": np.maximum(normal - 2.5, 0),
    }


_RAGGED = ((1, 5), (3, 300), (9, 777), (2, 1), (4, 0), (1, 65), (1, 64))
_BASE = Problem("")
SCORED = [
    *(
        replace(_BASE, label="ragged", dtype=d, lengths=_RAGGED)
        for d in ("f32", "bf16", "f16", "int8")
    ),
    *(
        replace(_BASE, label="paged", dtype=d, lengths=_RAGGED, block=16, gap=16)
        for d in ("f32", "bf16", "f16", "int8")
    ),
    Problem("all-keys", causal=False, lengths=_RAGGED, block=64),
    Problem("sixty-four-heads", heads=64, lengths=((2, 500),), by_score=True),
    Problem("sixteen-heads", dtype="int8", heads=16, lengths=((2, 500),), by_score=True),
    Problem("odd-sizes", heads=33, dim=37, lengths=((2, 500), (1, 90)), gap=1),
    Problem("odd-sizes", dtype="int8", heads=5, dim=37, lengths=((2, 500), (1, 90)), gap=3),
    Problem("odd-sizes", dtype="f32", heads=20, dim=6, lengths=((2, 500), (1, 90))),
    Problem("odd-sizes", dtype="f16", heads=1, dim=1, lengths=((2, 500), (1, 90))),
    Problem("equal-keys", distinct=1, lengths=((3, 333),)),
    Problem("equal-keys", dtype="int8", distinct=3, lengths=((3, 333),), by_score=True),
    Problem("by-score", dtype="f32", by_score=True, lengths=_RAGGED, block=32),
]
_LONG = replace(_BASE, dtype="f32", heads=2, dim=1, lengths=((1, 6000),), causal=False)
EXACT = [
    replace(_LONG, label="special", scores=_special()),
    replace(_LONG, label="special-by-score", scores=_special(), by_score=True),
    replace(_LONG, label="special", dtype="bf16", scores=_special(), by_score=True),
    replace(_LONG, label="mostly-nothing", scores=_mostly_nothing(), by_score=True),
    replace(_LONG, label="subnormal", scores=_subnormal(), by_score=True),
    replace(_LONG, label="count-1", scores=_special(), count=1),
    replace(_LONG, label="all-but-one", scores=_special(), count=5999),
    replace(_LONG, label="exactly-all", scores=_special(), count=6000, by_score=True),
]
DISTRIBUTIONS = [
    replace(_LONG, label=kind, scores=scores, lengths=((1, len(scores)),), count=2048)
    for kind, scores in _distributions(20003).items()
]
