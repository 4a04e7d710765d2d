"""Errors that a user can act on, and the exit codes of the whole command line.

Every expected failure is a :class:`Glm5Error` with one message, one hint and one exit code; the
command line prints ``error:`` and ``hint:`` lines for it. Anything else is a defect of ours and
keeps its traceback.
"""

from __future__ import annotations

import reprlib
from enum import IntEnum

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def brief(value: object) -> str:
    """``repr`` of a value from a file of the user, cut where it is long or deep."""
    return _REPR.repr(value)


class ExitCode(IntEnum):
    """Exit codes of ``glm5-ascend``; the README's table is generated from these docstrings."""

    DONE = 0
    INPUT = 1  # the input is at fault, or a check found something
    USAGE = 2  # wrong usage (click's own code)
    DOES_NOT_FIT = 3  # memory or disk
    NO_LAYOUT = 4  # no layout meets the targets
    PREFLIGHT = 5  # pre-flight failed: engine, port or environment
    UNHEALTHY = 6  # launched, but not healthy
    CHILD = 7  # a child process failed; its own code is printed
    INTERRUPTED = 130  # Ctrl-C


class Glm5Error(Exception):
    """A failure that the user can act on.

    Args:
        message: what is wrong, one sentence without a full stop, naming file and tensor.
        hint: what to do about it, one sentence.
    """

    exit_code: ExitCode = ExitCode.INPUT

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(Glm5Error):
    """``config.json`` is missing, unreadable, contradictory or of another model family."""


class CheckpointError(Glm5Error):
    """A checkpoint does not hold exactly the tensors that its configuration demands."""


class DoesNotFit(Glm5Error):
    """Memory or disk is too small."""

    exit_code = ExitCode.DOES_NOT_FIT


class PreflightError(Glm5Error):
    """The engine, the port or the environment is not ready."""

    exit_code = ExitCode.PREFLIGHT


class BackendUnavailable(PreflightError):
    """An operator backend was asked for by name and cannot run here."""


class Unhealthy(Glm5Error):
    """The server started but does not answer."""

    exit_code = ExitCode.UNHEALTHY


class ChildFailed(Glm5Error):
    """A child process ended with a code of its own."""

    exit_code = ExitCode.CHILD
