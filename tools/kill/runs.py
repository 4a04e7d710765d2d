"""Run the real command in a process group of its own, watch its memory, and kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.quant.journal import JOURNAL, read_journal

_POLL_S = 0.02
_KEYS = ("RssAnon:", "RssShmem:")


@dataclass(frozen=True, slots=True)
class Run:
    """How one run went.

    Attributes:
        code: exit code, negative for a signal.
        seconds: of the process.
        writing_seconds: from the first byte of weights on.
        peak_bytes: largest sum of anonymous and shared memory over the process tree, by polling.
        inside: whether a write of weights or its rename was under way when it was killed.
        files: outputs that the journal had when it ended.
        errors: what it printed on stderr.
    """

    code: int
    seconds: float
    writing_seconds: float
    peak_bytes: int
    inside: bool
    files: int
    errors: str


def run(words: Sequence[str], destination: Path, log: Path, kill_after: float | None) -> Run:
    """Run ``glm5-ascend`` with ``words``.

    Args:
        words: the command.
        destination: of the quantisation, to see what was under way.
        log: file for stderr.
        kill_after: seconds after the first weights are being written; None lets it end.
    """
    started = time.monotonic()
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "glm5_ascend", *words],
            stdout=subprocess.DEVNULL,
            stderr=stream,
            start_new_session=True,
        )
    peak, writing, inside = 0, None, False
    while process.poll() is None:
        peak = max(peak, tree_bytes(process.pid))
        if writing is None and _parts(destination):
            writing = time.monotonic()
        if (
            kill_after is not None
            and writing is not None
            and time.monotonic() - writing >= kill_after
        ):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _wait_for_group(process.pid)
            inside = _is_inside(destination)
            break
        time.sleep(_POLL_S)
    ended = time.monotonic()
    journal = read_journal(destination)
    files = 0 if journal is None else len(journal.done)
    return Run(
        process.returncode,
        ended - started,
        0.0 if writing is None else ended - writing,
        peak,
        inside,
        files,
        log.read_text(errors="replace"),
    )


def tree_bytes(root: int) -> int:
    """Anonymous and shared memory of a process and all below it, in bytes.

    A child that is about to start another program still has its parent's memory (``vfork``) and
    its parent's command line, by which it is told and left out.
    """
    total, waiting = 0, [(root, b"")]
    while waiting:
        pid, above = waiting.pop()
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if words == above:
                continue
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(_KEYS):
                    total += int(line.split()[1]) << 10
            for task in Path(f"/proc/{pid}/task").iterdir():
                children = (task / "children").read_text().split()
                waiting += [(int(child), words) for child in children]
        except (OSError, ValueError):
            continue
    return total


def _parts(destination: Path) -> list[Path]:
    return list(destination.glob(".*.safetensors.part"))


def _is_inside(destination: Path) -> bool:
    """A file half written, or one that is renamed and that the journal does not know yet."""
    journal = read_journal(destination)
    known = set() if journal is None else set(journal.done)
    whole = {path.name for path in destination.glob("*.safetensors")}
    return bool(_parts(destination)) or bool(whole - known) or _journal_half(destination)


def _journal_half(destination: Path) -> bool:
    return (destination / f".{JOURNAL}.part").exists()


def _wait_for_group(group: int) -> None:
    """Until no process of the group is left; a killed one may still be ending a write."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(_POLL_S)
    raise SystemExit(f"error: processes of group {group} did not end")
