"""Progress of a calibration: layer, tokens per second through layers, and time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from glm5_ascend.console import duration, note, stderr_console

_LINE_SECONDS = 10.0

Advance = Callable[[int], None]


class LayerProgress:
    """Counts tokens through half layers; shows a bar on a terminal and plain lines elsewhere.

    Args:
        layers: layers of the whole job.
        tokens: per layer.
        done: layers that an earlier run finished.
        what: is being done, for people.
    """

    def __init__(self, layers: int, tokens: int, done: int, what: str = "calibrating") -> None:
        self._layers, self._tokens, self._what = layers, tokens, what
        self._layer, self._passed = done, 0
        self._total = 2 * tokens * (layers - done)
        self._started = self._shown = time.monotonic()
        self._show: Callable[[str], None] = self._line

    def layer(self, index: int) -> None:
        """Say which layer the next tokens pass."""
        self._layer = index

    def advance(self, tokens: int) -> None:
        """Note that ``tokens`` have passed attention or feed-forward of the layer."""
        self._passed += tokens
        self._show(self.text())

    def text(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-3)
        rate = self._passed / seconds / 2
        left = (self._total - self._passed) / 2 / max(rate, 1e-9)
        return (
            f"{self._what}: layer {self._layer + 1} of {self._layers}:"
            f" {100 * self._passed / max(1, self._total):.0f} %, {rate:,.0f} tokens/s per layer,"
            f" {duration(left)} left"
        )

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if now - self._shown >= _LINE_SECONDS:
            note(text)
            self._shown = now

    @contextmanager
    def shown(self) -> Iterator[LayerProgress]:
        """Show the progress while the block runs."""
        console = stderr_console()
        if console.is_terminal:
            with console.status(self.text()) as status:
                self._show = status.update
                yield self
        else:
            note(f"{self._what}: {self._layers} layers with {self._tokens:,} tokens")
            yield self
        seconds = time.monotonic() - self._started
        note(f"{self._what} took {duration(seconds)} with {self._tokens:,} tokens")
