"""How the command line talks: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glm5_ascend.errors import Glm5Error

if TYPE_CHECKING:
    from rich.console import Console

Advance = Callable[[int], None]

_LINE_SECONDS = 10.0
_LINE_FRACTION = 0.1
_UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def emit(result: Mapping[str, object], text: str, *, as_json: bool) -> None:
    """Print a result on stdout: one JSON document, or the text made for people."""
    put(_as_json(result) if as_json else text)


def put(text: str) -> None:
    """Print lines on stdout."""
    print(text, file=sys.stdout or io.StringIO(), flush=True)


def note(text: str) -> None:
    """Print one line of information on stderr."""
    print(one_line(text), file=sys.stderr or io.StringIO(), flush=True)


def one_line(text: str) -> str:
    """Escape what would break a line or steer a terminal: control and format characters, separators
    of lines, and bytes of file names that are no text."""
    return "".join(
        ascii(char)[1:-1] if unicodedata.category(char) in _UNPRINTABLE else char for char in text
    )


def report(error: Glm5Error) -> None:
    """Print a failure as ``error:`` and ``hint:`` lines on stderr."""
    report_lines(error.message, error.hint)


def report_lines(message: str, hint: str) -> None:
    """Print ``error: message`` and ``hint: hint`` on stderr, in colour on a terminal."""
    console = stderr_console()
    for label, style, text in (("error", "bold red", message), ("hint", "bold cyan", hint)):
        if text:
            console.print(f"{label}:", style=style, end=" ")
            console.print(one_line(text), soft_wrap=True)


def stderr_console() -> Console:
    """A rich console on the current stderr that takes text literally.

    It respects NO_COLOR and non-terminals.
    """
    from rich.console import Console

    file = sys.stderr or io.StringIO()
    return Console(file=file, highlight=False, markup=False, emoji=False)


def _as_json(result: Mapping[str, object]) -> str:
    text = json.dumps(result, indent=2, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(result, indent=2)
    return text


@contextmanager
def progress(description: str, total_bytes: int) -> Iterator[Advance]:
    """Show the progress of a long job on stderr and yield a function to report bytes done.

    On a terminal: a bar with bytes, rate and remaining time. Elsewhere: a plain line at the start,
    every ten per cent or ten seconds whichever is later to come, and at the end.

    Args:
        description: what is being done, a few words.
        total_bytes: the work; where there is none, nothing is shown.
    """
    if total_bytes == 0:
        yield lambda nbytes: None
        return
    console = stderr_console()
    if console.is_terminal:
        with _bar(console, description, total_bytes) as advance:
            yield advance
        return
    lines = _PlainLines(description, total_bytes)
    yield lines.advance
    lines.finish()


@contextmanager
def _bar(console: Console, description: str, total_bytes: int) -> Iterator[Advance]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(description, total=total_bytes)
        yield lambda nbytes: bar.advance(task, nbytes)


class _PlainLines:
    """Progress for log files; a line says bytes done, share, rate and remaining time."""

    def __init__(self, description: str, total_bytes: int) -> None:
        self._description = description
        self._total = total_bytes
        self._done = 0
        self._started = self._shown_at = time.monotonic()
        self._shown_done = 0
        note(f"{description}: {_size(total_bytes)}")

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        waited = time.monotonic() - self._shown_at
        step = self._done - self._shown_done
        due = waited >= _LINE_SECONDS or (waited >= 1 and step >= _LINE_FRACTION * self._total)
        if due and step > 0 and self._done < self._total:
            self._show()

    def finish(self) -> None:
        seconds = time.monotonic() - self._started
        note(
            f"{self._description}: {_size(self._done)} in {duration(seconds)}"
            f" ({_size(self._done / max(seconds, 1e-3))}/s)"
        )

    def _show(self) -> None:
        now = time.monotonic()
        rate = self._done / max(now - self._started, 1e-3)
        left = (self._total - self._done) / max(rate, 1e-3)
        note(
            f"{self._description}: {100 * self._done / self._total:.0f} %,"
            f" {_size(self._done)} of {_size(self._total)}, {_size(rate)}/s,"
            f" {duration(left)} left"
        )
        self._shown_at, self._shown_done = now, self._done


def format_bytes(nbytes: float) -> str:
    """Decimal size with three significant digits: ``1.51 TB``."""
    return _size(nbytes)


def _size(nbytes: float) -> str:
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.{_digits(value)}f} {unit}"


def _digits(value: float) -> int:
    return 2 if value < 10 else 1 if value < 100 else 0


def duration(seconds: float) -> str:
    """Whole seconds, minutes and seconds, or hours and minutes: ``3 min 07 s``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
