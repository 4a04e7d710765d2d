"""Progress of ``accept`` on stderr: which check it is at, what came, for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glm5_ascend.console import duration, note, stderr_console

if TYPE_CHECKING:
    from rich.console import Console

LINE_SECONDS = 10.0


class Progress:
    """Counts checks and pieces of streamed answers; shows nothing by itself.

    Args:
        total: checks that there will be.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.name = ""
        self._pieces = 0
        self._begun = time.monotonic()
        self._lock = threading.Lock()

    def begin(self, name: str) -> None:
        """A check starts."""
        self.name, self._pieces, self._begun = name, 0, time.monotonic()

    def finish(self, verdict: str) -> None:
        """It has ended."""
        self.done += 1

    def piece(self) -> None:
        """A piece of a streamed answer has come; from any thread."""
        with self._lock:
            self._pieces += 1

    @property
    def text(self) -> str:
        """``stream, 412 pieces, 96 per second``; pieces hold a token or, with drafts, several."""
        if not self._pieces:
            return self.name
        rate = self._pieces / max(time.monotonic() - self._begun, 1e-3)
        return f"{self.name}, {self._pieces} pieces, {rate:.0f} per second"

    @property
    def seconds(self) -> float:
        """Since the check began."""
        return time.monotonic() - self._begun


class _Lines(Progress):
    """For log files: a line per check, and one every ten seconds while it waits."""

    def finish(self, verdict: str) -> None:
        super().finish(verdict)
        note(f"{self.done} of {self.total}: {verdict} {self.name} ({duration(self.seconds)})")

    def wait(self, ended: threading.Event) -> None:
        while not ended.wait(LINE_SECONDS):
            if self.seconds >= LINE_SECONDS:
                note(f"{self.done + 1} of {self.total}: {self.text}, {duration(self.seconds)}")


@contextmanager
def shown(total: int, url: str) -> Iterator[Progress]:
    """Progress on stderr: a bar on a terminal, else lines.

    How long a check takes depends on the endpoint alone, so no remaining time is shown.
    """
    console = stderr_console()
    if console.is_terminal:
        with _bar(console, total) as progress:
            yield progress
        return
    note(f"asking {url}: {total} checks")
    lines, ended = _Lines(total), threading.Event()
    thread = threading.Thread(target=lines.wait, args=(ended,), daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        ended.set()
        thread.join()


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, TextColumn("{task.description}", markup=False), console=console) as bar:
        task = bar.add_task("", total=total)
        progress = _Shown(
            total, lambda done, text: bar.update(task, completed=done, description=text)
        )
        yield progress


class _Shown(Progress):
    """For terminals: every change is put into the bar, which draws itself ten times a second."""

    def __init__(self, total: int, show: Callable[[int, str], None]) -> None:
        super().__init__(total)
        self._show = show

    def begin(self, name: str) -> None:
        super().begin(name)
        self._show(self.done, self.text)

    def finish(self, verdict: str) -> None:
        super().finish(verdict)
        self._show(self.done, self.name)

    def piece(self) -> None:
        super().piece()
        self._show(self.done, self.text)
