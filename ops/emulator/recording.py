"""Cost runs: every launch inside :func:`record` is run for its time and kept.

A kernel's Python side asks :func:`cores` how many blocks to launch and :func:`costing` whether to
take the tiles of real size. Nothing else distinguishes a cost run from an ordinary one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from glm5_ascend.ops.emulator.abi import Rates
from glm5_ascend.ops.emulator.report import Report


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch that took place."""

    kernel: str
    core: str
    blocks: int
    report: Report


@dataclass
class Recorder:
    """How to run launches, and those that ran.

    Args:
        cores: AIC of the chip.
        rates: of each model of time.
        bins: of the timelines.
        timeout: seconds for one launch.
    """

    cores: int
    rates: tuple[Rates, ...]
    bins: int = 0
    timeout: float = 3600.0
    launches: list[Launch] = field(default_factory=list)


_ACTIVE: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def record(recorder: Recorder) -> Iterator[Recorder]:
    """Launches in here are timed, run without shadow memory and are added to ``recorder``."""
    token = _ACTIVE.set(recorder)
    try:
        yield recorder
    finally:
        _ACTIVE.reset(token)


def active() -> Recorder | None:
    """The recorder of this context."""
    return _ACTIVE.get()


def costing() -> bool:
    """Whether this is a cost run, for which a kernel takes its tiles of real size."""
    return _ACTIVE.get() is not None


def cores(default: int) -> int:
    """Blocks to launch: the chip's AIC in a cost run, ``default`` otherwise."""
    recorder = _ACTIVE.get()
    return default if recorder is None else recorder.cores
