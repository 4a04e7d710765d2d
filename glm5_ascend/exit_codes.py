"""What each exit code means; ``--help`` and the README's table are made from this."""

from __future__ import annotations

from glm5_ascend.errors import ExitCode

MEANINGS: dict[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.INPUT: "the input is at fault, or a check found something",
    ExitCode.USAGE: "wrong usage",
    ExitCode.DOES_NOT_FIT: "does not fit (memory, disk)",
    ExitCode.NO_LAYOUT: "no layout meets the targets",
    ExitCode.PREFLIGHT: "pre-flight failed (engine, port, environment)",
    ExitCode.UNHEALTHY: "launched, but unhealthy",
    ExitCode.CHILD: "a child process failed; its own code is printed",
    ExitCode.INTERRUPTED: "interrupted",
}


def help_epilog() -> str:
    """The table for a click epilog; ``\\b`` keeps click from wrapping it."""
    lines = [f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\b\nExit codes:\n" + "\n".join(lines)
