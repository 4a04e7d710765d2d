"""A process that runs the quantiser and is killed at a chosen moment; see test_resume.py.

Every write point of a run is an event: each tensor, each rename (before and after it, that is
between the data file's appearance and the journal's), each fsync. Without moments the script
prints the events of a whole run. With moments it forks a run in a process group of its own for each
and kills the group with SIGKILL at that event; ``chain`` lets each run resume the one before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from glm5_ascend.quant import work
from glm5_ascend.quant.command import QuantizeOptions, run

SHARD_BYTES = 120_000


class Events:
    """Counts write points; at number ``fatal`` the whole process group dies."""

    def __init__(self, fatal: int) -> None:
        self.fatal, self.names = fatal, list[str]()

    def __call__(self, name: str) -> None:
        if len(self.names) == self.fatal:
            os.killpg(os.getpgid(0), signal.SIGKILL)
        self.names.append(name)

    def around(self, original: Callable[..., Any], label: str) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            target = Path(args[-1]).name if label == "rename" else ""
            self(f"before {label} {target}")
            result = original(*args, **kwargs)
            self(f"after {label} {target}")
            return result

        return wrapped

    def install(self) -> None:
        os.replace = self.around(os.replace, "rename")
        os.fsync = self.around(os.fsync, "fsync")
        convert = work.convert

        def counted(*args: Any) -> Iterator[tuple[str, memoryview]]:
            for name, chunk in convert(*args):
                self("tensor")
                yield name, chunk

        work.convert = counted


def quantise(source: Path, destination: Path, *, resume: bool) -> None:
    options = QuantizeOptions(source, destination, "w4a8", resume=resume, shard_bytes=SHARD_BYTES)
    run(options)


def killed(source: Path, destination: Path, moment: int) -> int:
    """Fork a run that dies at ``moment``; return its wait status."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        Events(moment).install()
        quantise(source, destination, resume=destination.exists())
        os._exit(0)
    return os.waitpid(child, 0)[1]


def main() -> None:
    kind, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if kind == "count":
        complete = Events(-1)
        complete.install()
        quantise(source, target, resume=False)
        print(json.dumps(complete.names))
        return
    for moment in map(int, sys.argv[4:]):
        status = killed(source, target if kind == "chain" else target / f"killed-{moment}", moment)
        print(json.dumps({"moment": moment, "signal": os.WTERMSIG(status)}))


if __name__ == "__main__":
    main()
