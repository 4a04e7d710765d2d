"""The process that holds the GPU: runs problems and reports to ``supervise`` in lines of JSON.

A kernel that faults or hangs takes this process with it, not the run. What libraries print goes to
stderr, so that stdout carries the reports only.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

import torch

from tools.gpu_bench import attention, hadamard, indexer, mlapo, peers_attention, peers_indexer
from tools.gpu_bench.device import Cuda, Device, Host
from tools.gpu_bench.entry import Contestant
from tools.gpu_bench.peers import Peers
from tools.gpu_bench.runner import Row, measure, not_timed
from tools.gpu_bench.shapes import Goal, Shape

SPOILED = 3  # exit code: the device no longer computes
# Less time than this is left untouched at the end of a budget.
_CASE_S = 6.0
PROBLEMS: dict[str, Any] = {
    "attention": attention.Problem,
    "indexer": indexer.Problem,
    "mlapo": mlapo.Problem,
    "hadamard": hadamard.Problem,
}
INPUTS = Contestant("inputs", "inputs", "", 0, lambda: None)  # type: ignore[arg-type,return-value]


def contestants(problem: Any, peers: Peers, *, jit: bool) -> Iterator[Contestant]:
    """Peers first, since the race wants them, then the project and torch."""
    if isinstance(problem, attention.Problem):
        yield from peers_attention.contestants(problem, peers)
    elif isinstance(problem, indexer.Problem):
        yield from peers_indexer.contestants(problem, peers, jit=jit)
    yield from problem.contestants()


def run(options: dict[str, Any], out: TextIO) -> int:
    """Measure ``options["shapes"]``; the keys are those that ``supervise`` writes."""

    def send(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    end = time.monotonic() + options["budget"]
    on_gpu = options["device"] == "cuda"
    device: Device = Cuda() if on_gpu else Host()
    send(event="device", **_described(on_gpu))
    peers = Peers(Path(options["peers"]))
    for fields in options["shapes"]:
        left = end - time.monotonic()
        if left < _CASE_S:
            break
        goal = fields.pop("goal")
        shape = Shape(**fields, goal=None if goal is None else Goal(**goal))
        send(event="case", case=shape.name)
        if not _case(shape, options, device, peers, min(options["seconds"], left / 4), send):
            return SPOILED
        send(event="done", case=shape.name)
    return 0


def _case(
    shape: Shape, options: dict[str, Any], device: Device, peers: Peers, seconds: float, send: Any
) -> bool:
    """Whether the device still computes after one problem."""

    def tell(one: Contestant, stage: str) -> None:
        send(event="stage", stage=stage, row=not_timed(shape, one, "", ""))

    tell(INPUTS, "set up")
    try:
        problem = PROBLEMS[shape.kernel](shape, device.name, options["seed"], options["backend"])
    except RuntimeError as error:  # out of memory, or a device that is gone
        send(event="row", row=not_timed(shape, INPUTS, "failed", str(error)[:300]))
        return device.healthy()
    found = measure(
        shape, contestants(problem, peers, jit=options["jit"]), device, seconds, tell=tell,
        omit=options["omit"].get(shape.name, []), streams=options["streams"].get(shape.name, []),
    )  # fmt: skip
    for row in found:
        send(event="row", row=row | {"seed": options["seed"]})
        if row["status"] == "failed" and not device.healthy():
            return False
    del problem, found
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return True


def _described(on_gpu: bool) -> Row:
    versions = {}
    for name in ("torch", "triton", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    found: Row = {"gpu": "none", "versions": versions | {"cuda": torch.version.cuda or "none"}}
    if on_gpu:
        facts = torch.cuda.get_device_properties(0)
        found["gpu"] = facts.name
        found["capability"] = f"{facts.major}.{facts.minor}"
        found["processors"] = facts.multi_processor_count
    return found


if __name__ == "__main__":
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.exit(run(json.loads(sys.argv[1]), reports))
