"""The work of ``glm5-ascend ops verify``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from glm5_ascend import console
from glm5_ascend.ops.verify import suite
from glm5_ascend.ops.verify.report import Report
from glm5_ascend.ops.verify.runner import Result, plan, run

Done = Callable[[Result], None]


def operators() -> list[str]:
    """Names that ``--op`` takes, in the order of the suite."""
    return list(dict.fromkeys(case.operator for case in suite.cases("full")))


def verify(
    backends: Sequence[str], names: Sequence[str], size: str, *, quiet: bool = False
) -> Report:
    """Run the suite.

    Args:
        backends: of the project; none = all that can run here.
        names: operators; none = all.
        size: "quick", "normal" or "full".
        quiet: no progress on stderr.

    Raises:
        BackendUnavailable: a named backend cannot run here.
    """
    order = operators()
    cases = [case for case in suite.cases(size) if not names or case.operator in names]
    cases.sort(key=lambda case: order.index(case.operator))
    runs = plan(dict.fromkeys(case.operator for case in cases), backends)
    total = sum(len(runs.calls[case.operator]) for case in cases)
    with _progress(total, quiet=quiet) as done:
        results = run(cases, runs, done)
    return Report(size, results, runs.refusals)


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Done]:
    """A bar on a terminal, a line per operator and backend elsewhere."""
    terminal = console.stderr_console()
    if quiet:
        yield lambda result: None
    elif terminal.is_terminal:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=terminal, transient=True) as bar:
            task = bar.add_task("verify", total=total)
            yield lambda result: bar.update(
                task, advance=1, description=f"{result.case.operator} {result.backend}"
            )
    else:
        lines = _Lines()
        yield lines.done
        lines.close()


class _Lines:
    """Says when an operator is through."""

    def __init__(self) -> None:
        self._operator, self._count, self._failed = "", 0, 0
        self._started = time.monotonic()

    def done(self, result: Result) -> None:
        if result.case.operator != self._operator:
            self.close()
            self._operator, self._count, self._failed = result.case.operator, 0, 0
            self._started = time.monotonic()
        self._count += 1
        self._failed += bool(result.figures.problem)

    def close(self) -> None:
        if self._count:
            seconds = time.monotonic() - self._started
            failed = f", {self._failed} failed" if self._failed else ""
            console.note(f"{self._operator}: {self._count} cases in {seconds:.0f} s{failed}")
