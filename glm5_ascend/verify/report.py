"""The result of ``glm5-ascend verify``: JSON, or a table for people."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from glm5_ascend.console import one_line
from glm5_ascend.engine_releases import Release
from glm5_ascend.errors import ExitCode
from glm5_ascend.verify.findings import Finding

SCHEMA = 1
_WIDTHS = (80, 160)


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at and what was found.

    Attributes:
        directory: the checkpoint.
        release: the engine, None for all known ones.
        findings: errors first.
        tensors: stored tensors.
        looked_at: what was read, in words.
        errors: relative error by part against the source, if one was given.
        engine: name of an engine without releases; None where ``release`` tells.
    """

    directory: Path
    release: Release | None
    findings: list[Finding]
    tensors: int
    looked_at: str
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    engine: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        """1 if there is an error."""
        bad = any(finding.severity == "error" for finding in self.findings)
        return ExitCode.INPUT if bad else ExitCode.DONE

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {
            "schema": SCHEMA,
            "directory": str(self.directory),
            "engine": self.engine if self.release is None else self.release.text,
            "tensor_count": self.tensors,
            "looked_at": self.looked_at,
            "passed": self.exit_code is ExitCode.DONE,
            "findings": [finding.as_dict() for finding in self.findings],
            "relative_error": self.errors,
        }

    def as_text(self) -> str:
        """A head line, the table of findings and one of errors."""
        every = self.engine or "every vllm-ascend from 0.17"
        engine = every if self.release is None else str(self.release)
        lines = [
            f"{one_line(str(self.directory))}: {self.tensors:,} tensors, {self.looked_at},"
            f" checked for {engine}"
        ]
        if self.findings:
            lines.append(_table(self.findings))
        lines += [
            f"  {part:<20} relative error {row['mean']:.3e} on average, {row['worst']:.3e} at worst"
            f" ({row['tensors']:.0f} tensors)"
            for part, row in self.errors.items()
        ]
        counts = [f.severity for f in self.findings]
        lines.append(
            f"{counts.count('error')} errors, {counts.count('warning')} warnings"
            if counts
            else "nothing found"
        )
        return "\n".join(lines)


def _table(findings: list[Finding]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for name, ratio in (("", 1), ("rule", 2), ("what", 8), ("help", 4)):
        table.add_column(name, ratio=ratio, no_wrap=ratio == 1, min_width=7 if ratio == 1 else None)
    for finding in findings:
        style = "bold red" if finding.severity == "error" else "yellow"
        table.add_row(
            Text(finding.severity, style),
            Text(finding.rule),
            Text(one_line(finding.message)),
            Text(one_line(finding.fix)),
        )
    low, high = _WIDTHS
    width = min(max(shutil.get_terminal_size((high, 24)).columns, low), high)
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")
