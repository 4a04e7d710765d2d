"""Bytes and operations that a problem costs whatever computes it, and the floor that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tools.gpu_bench.h200 import MEMORY, PRODUCTS

LATENT, ROPE, NOPE = 512, 64, 192
HIDDEN, Q_LORA = 6144, 2048
INDEX_HEADS, INDEX_DIM = 32, 128
CHOSEN = 2048

# Bytes of a row of the latent cache: 512 + 64 BF16 numbers; or 512 codes, 64 BF16 numbers, 4 F32.
_LATENT_ROW = {"bf16": 1152, "fp8": 656, "int8": 656}
# Bytes of an indexer key with its scale: none, F32, F16.
_INDEX_ROW = {"bf16": 256, "fp8": 132, "int8": 130}


@dataclass(frozen=True, slots=True)
class Cost:
    """What no implementation can do without.

    Args:
        nbytes: every distinct byte of inputs and outputs once.
        flops: multiplications plus additions of the matrix products by the numbers' kind.
        gathered: bytes that reach the multiprocessors when every query token gathers its own rows.
    """

    nbytes: int
    flops: Mapping[str, float]
    gathered: int = 0

    @property
    def memory_us(self) -> float:
        """Microseconds of moving ``nbytes``."""
        return 1e6 * self.nbytes / MEMORY.value

    @property
    def products_us(self) -> float:
        """Microseconds of the matrix products."""
        return 1e6 * sum(n / PRODUCTS[kind].value for kind, n in self.flops.items())

    @property
    def floor_us(self) -> float:
        """The longer of the two."""
        return max(self.memory_us, self.products_us)

    @property
    def bound(self) -> str:
        """Which of the two it is."""
        return "memory" if self.memory_us >= self.products_us else "products"


def attention(
    requests: int, queries: int, context: int, heads: int, dtype: str, chosen: int = CHOSEN
) -> Cost:
    """Sparse attention: ``queries`` tokens of each request over ``chosen`` rows of ``context``,
    or over all that they see where that is less.

    Of a request's cache as many rows are read as its tokens can name, each once. Codes are
    multiplied as 16-bit numbers, which represent them exactly.
    """
    tokens, row = requests * queries, _LATENT_ROW[dtype]
    keys = requests * min(context, queries * chosen) * row
    queries_and_results = 2 * tokens * heads * (LATENT + ROPE + LATENT)
    pairs = requests * sum(min(chosen, context - queries + i + 1) for i in range(queries))
    flops = 2.0 * pairs * heads * (LATENT + ROPE + LATENT)
    nbytes = keys + queries_and_results + 4 * tokens * chosen
    return Cost(nbytes, {"bf16": flops}, pairs * row)


def indexer(requests: int, queries: int, context: int, dtype: str, chosen: int = CHOSEN) -> Cost:
    """Scores and selection: the last ``queries`` tokens of each request of ``context`` keys."""
    tokens, size = requests * queries, 2 if dtype == "bf16" else 1
    pairs = requests * sum(context - queries + i + 1 for i in range(queries))
    keys = requests * context * _INDEX_ROW[dtype]
    query = tokens * INDEX_HEADS * (INDEX_DIM * size + 4)
    flops = 2.0 * pairs * INDEX_HEADS * INDEX_DIM
    return Cost(keys + query + 4 * tokens * chosen, {dtype: flops})


def mlapo(tokens: int, heads: int, dtype: str) -> Cost:
    """MLA pre-processing; ``dtype`` is that of the projections, absorption is BF16 always."""
    down, up = HIDDEN * (Q_LORA + LATENT + ROPE), Q_LORA * heads * (NOPE + ROPE)
    absorb = heads * NOPE * LATENT
    weights = (down + up) * (2 if dtype == "bf16" else 1) + 2 * absorb
    row = HIDDEN + heads * (LATENT + ROPE) + LATENT + ROPE
    flops = {dtype: 2.0 * tokens * (down + up)}
    flops["bf16"] = flops.get("bf16", 0.0) + 2.0 * tokens * absorb
    return Cost(weights + 2 * tokens * row, flops)


def hadamard(rows: int) -> Cost:
    """Rotation of BF16 rows of 128 with int8 quantisation: codes and an F32 scale come out."""
    return Cost(rows * (2 * INDEX_DIM + INDEX_DIM + 4), {})
