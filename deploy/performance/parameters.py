"""The fitted numbers of the performance model: what each is, and between which bounds it may lie.

``parameters.toml`` holds the values; ``python -m tools.calibrate_planner`` writes it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "parameters.toml"


@dataclass(frozen=True, slots=True)
class Parameters:
    """Eleven numbers; shares are of the die's published peak.

    Attributes:
        gemm: share of the matrix peak that a large product reaches.
        hbm: share of the memory bandwidth that streams of weights and caches reach.
        gather: share of it that sparse attention reaches while it collects single tokens.
        attention: share of the BF16 peak that attention and the indexer reach.
        link: share of the link's bandwidth that a collective reaches.
        tp_us: latency of one collective over TP ranks, microseconds.
        layer_us: all other kernels of a layer in a captured graph.
        index_us: those of an indexer.
        eager_us: what a layer takes more outside of a graph, as each draft does.
        host_ms: host work between two steps, milliseconds.
        sequence_ms: host work for each sequence of a rank.
    """

    gemm: float
    hbm: float
    gather: float
    attention: float
    link: float
    tp_us: float
    layer_us: float
    index_us: float
    eager_us: float
    host_ms: float
    sequence_ms: float


# From what hardware and the sources of deploy/README.md make possible, set before the fit.
BOUNDS: dict[str, tuple[float, float]] = {
    "gemm": (0.20, 0.85),
    "hbm": (0.50, 0.90),
    "gather": (0.03, 0.60),
    "attention": (0.05, 0.66),
    "link": (0.10, 0.70),
    "tp_us": (5.0, 120.0),
    "layer_us": (40.0, 400.0),
    "index_us": (10.0, 200.0),
    "eager_us": (0.0, 4000.0),
    "host_ms": (0.5, 25.0),
    "sequence_ms": (0.0, 2.0),
}

# Not fitted. Tokens of the busiest die over the mean where routing is not forced to be even:
# prefill of 6688 against 5655 tokens/s per card (arXiv 2506.12708).
IMBALANCE = 6688 / 5655
# Not fitted. Latency of dispatch and combine of one layer, microseconds: the floor of kernels over
# all cores that vllm-ascend's authors report. The operators of the list hold it in place.
MOE_US = 106.0
# Not fitted. GB/s that one die reads from the memory of hosts: a server's four CPUs have 160 GB/s
# of the unified bus each (arXiv 2506.12708) and feed its 16 dies. Unpublished for other families.
HOST_GBS = {"A3": 4 * 160 / 16}
# Not fitted. Bytes a cube core writes out in one cycle: 70 GiB/s at 1.85 GHz, the measured per-core
# rate of PTO's cost model. The BF16 indexer writes a score of every head as F32.
OUT_BYTES = 70 * 2**30 / 1.85e9
# Not fitted. Cycles of a vector core to select from one key: 4.36 steps of a full merge sort, two
# elements a cycle (structure of the published kernel, instruction rates of CANN's guide).
SORT_CYCLES = 4.36 / 2
# BF16 operations of a cube core in one cycle; a die's peak is this times cores times clock. Two
# vector cores stand beside each cube core.
CUBE_FLOPS = 8192


def names() -> tuple[str, ...]:
    """The parameters' names in order."""
    return tuple(item.name for item in fields(Parameters))


@cache
def fitted(path: Path = FILE) -> Parameters:
    """The calibrated values."""
    values = tomllib.loads(path.read_text(encoding="utf-8"))["value"]
    return Parameters(**{name: float(values[name]) for name in names()})
