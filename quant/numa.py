"""Workers on NUMA nodes: which CPUs belong together, and which worker gets which of them.

Pages are placed by the kernel's rule of first touch, so a worker whose threads stay on one node
finds its buffers there; no memory policy beyond that is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NODES = Path("/sys/devices/system/node")
_NAME = re.compile(r"node(\d+)")


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node and those of its CPUs that this process may use."""

    number: int
    cpus: frozenset[int]


def nodes(directory: Path = NODES) -> list[Node]:
    """Nodes with at least one usable CPU; empty where the kernel does not tell."""
    usable = os.sched_getaffinity(0)
    found = []
    for entry in directory.glob("node*"):
        match = _NAME.fullmatch(entry.name)
        try:
            text = (entry / "cpulist").read_text()
        except OSError:
            continue
        cpus = frozenset(_numbers(text)) & usable
        if match and cpus:
            found.append(Node(int(match[1]), cpus))
    return sorted(found, key=lambda node: node.number)


def placement(found: Sequence[Node], workers: int) -> list[Node]:
    """The node of each worker, round-robin; empty for fewer than two nodes."""
    return [found[number % len(found)] for number in range(workers)] if len(found) > 1 else []


def describe(found: Sequence[Node], placed: Sequence[Node]) -> str:
    """One line for the summary."""
    if not placed:
        what = "one node" if found else "the kernel lists no nodes"
        return f"NUMA: {what}, workers are not pinned"
    shares = ", ".join(
        f"node {node.number}: {sum(one.number == node.number for one in placed)}" for node in found
    )
    return f"NUMA: {len(placed)} workers pinned ({shares})"


def _numbers(text: str) -> set[int]:
    """CPUs of a list such as ``0-3,8``."""
    result: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            result.update(range(int(first), int(last or first) + 1))
    return result
