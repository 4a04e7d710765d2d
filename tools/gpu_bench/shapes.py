"""The kernels at the shapes of production, most telling first, and the goals set for them."""

from __future__ import annotations

from dataclasses import dataclass

from tools.gpu_bench import costs
from tools.gpu_bench.costs import CHOSEN, Cost


@dataclass(frozen=True, slots=True)
class Goal:
    """The project takes at most ``most`` times as long as ``over``: the best peer, or the floor."""

    most: float
    over: str = "peer"


@dataclass(frozen=True, slots=True)
class Shape:
    """One problem.

    Args:
        name: for ``--case`` and the rows.
        kernel: "attention", "indexer", "mlapo" or "hadamard".
        dtype: of the cache rows, keys or weights: "bf16", "fp8" or "int8".
        requests, queries, context, heads: sizes; ``queries`` per request, the last of ``context``.
        sets: of attention over many queries: "random" rows for each, or "overlapping" ones.
        chosen: rows that a token attends to, or keys that it keeps.
    """

    name: str
    kernel: str
    dtype: str
    requests: int = 1
    queries: int = 1
    context: int = 131072
    heads: int = 64
    sets: str = "random"
    goal: Goal | None = None
    chosen: int = CHOSEN

    @property
    def tokens(self) -> int:
        """Query tokens of all requests."""
        return self.requests * self.queries

    @property
    def cost(self) -> Cost:
        """Bytes, operations and floor."""
        if self.kernel == "attention":
            size = self.requests, self.queries, self.context, self.heads
            return costs.attention(*size, self.dtype, self.chosen)
        if self.kernel == "indexer":
            size = self.requests, self.queries, self.context
            return costs.indexer(*size, self.dtype, self.chosen)
        if self.kernel == "mlapo":
            return costs.mlapo(self.tokens, self.heads, self.dtype)
        return costs.hadamard(self.tokens)

    @property
    def title(self) -> str:
        """What is computed, for people."""
        tokens = f"{self.requests} x {self.queries} query tokens"
        if self.kernel == "attention":
            kind = "" if self.queries == 1 else f", {self.sets} sets"
            size = self.context
            rows = f"{self.chosen} of {f'{size // 1024}k' if size % 1024 == 0 else size} rows"
            return f"{tokens}, {self.heads} heads, {rows}{kind}"
        if self.kernel == "indexer":
            return f"{tokens}, 32 heads x 128, best {self.chosen} of {self.context // 1024}k keys"
        if self.kernel == "mlapo":
            return f"{self.tokens} tokens, 6144 -> {self.heads} x (512 + 64)"
        return f"{self.tokens} rows of 128"


KERNELS = ("attention", "indexer", "mlapo", "hadamard")
_PREFILL = 4096


def _prefill(context: int, heads: int, sets: str) -> Shape:
    name = f"attention-prefill-{context // 1024}k-h{heads}-{sets}"
    goal = Goal(0.75 if heads == 8 else 1.0)
    return Shape(name, "attention", "bf16", 1, _PREFILL, context, heads, sets, goal)


def _indexer(dtype: str, queries: int, context: int, goal: float | None = None) -> Shape:
    phase = "decode" if queries == 1 else "prefill"
    name = f"indexer-{phase}-{dtype}-{context // 1024}k"
    return Shape(name, "indexer", dtype, 1, queries, context, 32, goal=Goal(goal) if goal else None)


def _decode(dtype: str, requests: int, heads: int, goal: float | None = None) -> Shape:
    name = f"attention-decode-{dtype}-b{requests}-h{heads}"
    made = Goal(goal) if goal else None
    return Shape(name, "attention", dtype, requests, 1, 32768, heads, goal=made)


def _mlapo(dtype: str, tokens: int, heads: int = 64, goal: float | None = None) -> Shape:
    name = f"mlapo-{'w8a8' if dtype == 'int8' else dtype}-{tokens}" + f"-h{heads}" * (heads != 64)
    made = Goal(goal, "floor") if goal else None
    return Shape(name, "mlapo", dtype, tokens, heads=heads, goal=made)


SHAPES = (
    _decode("fp8", 8, 16, 0.75),
    _indexer("fp8", 1, 131072, 0.75),
    _mlapo("int8", 1, goal=1.4),
    _prefill(32768, 64, "overlapping"),
    _decode("fp8", 64, 64, 0.55),
    _prefill(32768, 8, "overlapping"),
    _indexer("fp8", _PREFILL, 131072, 0.83),
    _prefill(131072, 64, "overlapping"),
    _prefill(131072, 8, "overlapping"),
    _prefill(32768, 64, "random"),
    _prefill(32768, 8, "random"),
    _prefill(131072, 64, "random"),
    _prefill(131072, 8, "random"),
    _indexer("bf16", 1, 131072),
    _indexer("int8", 1, 131072),
    _decode("bf16", 8, 16),
    _decode("bf16", 64, 64),
    _decode("int8", 8, 16),
    _decode("fp8", 8, 8),
    _indexer("bf16", _PREFILL, 131072),
    _indexer("int8", _PREFILL, 131072),
    _indexer("fp8", 1, 32768),
    Shape("attention-prefill-2119-h8-random", "attention", "bf16", 1, 2119, 2119, 8),
    _mlapo("bf16", 1),
    _mlapo("int8", 8),
    _mlapo("int8", 1, heads=8),
    _mlapo("int8", 128),
    Shape("hadamard-4096", "hadamard", "bf16", 4096),
)
BY_NAME = {shape.name: shape for shape in SHAPES}
