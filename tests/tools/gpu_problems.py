"""Problems of the GPU benchmark at sizes that a CPU computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.gpu_bench import draw, mlapo, runner
from tools.gpu_bench.device import Host
from tools.gpu_bench.peers import Peers
from tools.gpu_bench.runner import measure
from tools.gpu_bench.shapes import Shape
from tools.gpu_bench.worker import PROBLEMS, contestants

ATTENTION = [
    Shape("decode-bf16", "attention", "bf16", 2, 1, 256, 8, chosen=64),
    Shape("decode-int8", "attention", "int8", 2, 1, 256, 8, chosen=64),
    Shape("decode-fp8", "attention", "fp8", 2, 1, 256, 8, chosen=64),
    Shape("prefill", "attention", "bf16", 1, 4, 256, 8, "overlapping", chosen=64),
    Shape("whole-prompt", "attention", "bf16", 1, 70, 70, 2, chosen=64),
]
INDEXER = [
    Shape(f"indexer-{dtype}", "indexer", dtype, 1, 2, 256, chosen=64)
    for dtype in ("bf16", "int8", "fp8")
]
MLAPO = [Shape(f"mlapo-{d}", "mlapo", d, 3, heads=2) for d in ("int8", "bf16")]
HADAMARD = [Shape("hadamard", "hadamard", "bf16", 8)]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller projections of MLA pre-processing, one set of inputs, one sample."""
    monkeypatch.setattr(mlapo, "HIDDEN", 256)
    monkeypatch.setattr(mlapo, "Q_LORA", 128)
    monkeypatch.setattr(mlapo, "DOWN", 128 + mlapo.LATENT + mlapo.ROPE)
    monkeypatch.setattr(draw, "SETS", 1)
    monkeypatch.setattr(runner, "LEAST", 1)


def run(shape: Shape, backend: str, **options: Any) -> dict[str, dict[str, Any]]:
    """Rows by contestant, without peers."""
    problem = PROBLEMS[shape.kernel](shape, "cpu", 3, backend)
    everyone = contestants(problem, Peers(Path("none")), jit=False)
    rows = list(measure(shape, everyone, Host(), 0.0, **options))
    return {row["contestant"]: row for row in rows}
