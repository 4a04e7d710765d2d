"""One thing that is wrong with a command, a layout or a machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glm5_ascend.errors import ExitCode

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands.

    Attributes:
        file: path as the user gave it, ``-`` for standard input; empty where there is no file.
        line: first line of the command, counted from 1; 0 where there is none.
        item: flag, key, variable or layout concerned; may be empty.
    """

    file: str = ""
    line: int = 0
    item: str = ""

    def __str__(self) -> str:
        spot = f"{self.file}:{self.line}" if self.file and self.line else self.file
        return " ".join(part for part in (spot, self.item) if part)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, what follows from it, and what helps.

    Attributes:
        severity: ``error`` (refused, crashes or computes wrongly), ``warning`` (ignored, slow or
            known to fail for some) or ``note``.
        rule: identifier, stable between versions of this tool.
        where: file, line and flag or key.
        message: one sentence without a full stop, what was found.
        why: what the engine does about it.
        fix: what to do.
        source: where that is known from.
    """

    severity: str
    rule: str
    where: Place
    message: str
    why: str
    fix: str
    source: str

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {
            "severity": self.severity,
            "rule": self.rule,
            "file": self.where.file,
            "line": self.where.line,
            "item": self.where.item,
            "message": self.message,
            "why": self.why,
            "fix": self.fix,
            "source": self.source,
        }


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings, then notes, each in the given order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def exit_code(findings: Iterable[Finding], *, strict: bool = False) -> ExitCode:
    """1 where there is an error, or, if ``strict``, a warning."""
    fatal = {ERROR, WARNING} if strict else {ERROR}
    return ExitCode.INPUT if any(f.severity in fatal for f in findings) else ExitCode.DONE
