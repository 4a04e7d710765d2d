"""``--numa``: nodes from /sys, workers round-robin, one line of what was done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glm5_ascend.cli import cli
from glm5_ascend.quant import numa, workers
from glm5_ascend.quant.command import QuantizeOptions, run
from tests.quant.conftest import contents, quantize
from tests.quant.killed_runs import SHARD_BYTES


def machine(directory: Path, **lists: str) -> Path:
    for name, cpus in lists.items():
        (directory / name).mkdir(parents=True)
        (directory / name / "cpulist").write_text(cpus + "\n")
    return directory


def test_nodes_and_placement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    found = numa.nodes(machine(tmp_path, node0="0-3,8", node1="4-7,20-23", node2="", node3="99"))
    assert [(node.number, sorted(node.cpus)) for node in found] == [
        (0, [0, 1, 2, 3, 8]),
        (1, [4, 5, 6, 7]),
    ]
    placed = numa.placement(found, 5)
    assert [node.number for node in placed] == [0, 1, 0, 1, 0]
    assert numa.describe(found, placed) == "NUMA: 5 workers pinned (node 0: 3, node 1: 2)"
    one = numa.describe(found[:1], numa.placement(found[:1], 5))
    assert one == "NUMA: one node, workers are not pinned"
    assert "lists no nodes" in numa.describe([], [])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_workers_run_on_their_nodes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    nodes = [numa.Node(0, frozenset({first})), numa.Node(1, frozenset({second}))]
    monkeypatch.setattr(numa, "nodes", lambda: nodes)
    seen: set[frozenset[int]] = set()
    receive = workers._Pool._receive

    def watched(pool: Any, connection: Any) -> None:
        receive(pool, connection)
        seen.add(frozenset(os.sched_getaffinity(pool._workers[connection].pid)))

    monkeypatch.setattr(workers._Pool, "_receive", watched)
    out = tmp_path / "out"
    summary = run(
        QuantizeOptions(source, out, "w4a8", workers=2, numa=True, shard_bytes=SHARD_BYTES)
    )
    assert seen == {frozenset({first}), frozenset({second})}
    assert summary.numa == "NUMA: 2 workers pinned (node 0: 1, node 1: 1)"
    assert summary.numa in summary.as_text()
    plain = quantize(source, tmp_path / "plain", "w4a8", shard_bytes=SHARD_BYTES)
    assert contents(out) == contents(plain)
    alone = CliRunner().invoke(cli, ["quantize", "a", "b", "--scheme", "w8a8", "--numa"])
    assert "--numa goes with --workers" in alone.stderr
