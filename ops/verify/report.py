"""What ``glm5-ascend ops verify`` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.verify import compare
from glm5_ascend.ops.verify.compare import Figures
from glm5_ascend.ops.verify.runner import Refusal, Result

SCHEMA = 1
_HEADER = ("operator", "backend", "cases", "max error", "budget", "cosine", "recall", "result")


@dataclass(frozen=True)
class Row:
    """All cases of an operator on a backend; figures are those nearest to their limits."""

    operator: str
    backend: str
    cases: int
    failed: int
    declined: int
    figures: Figures
    unusable: bool = False  # the backend could run none of them

    @property
    def result(self) -> str:
        """In a word or two."""
        if self.failed:
            return f"{self.failed} failed"
        if self.unusable:
            return "cannot run"
        if self.declined:
            return f"pass, {self.declined} declined" if self.cases > self.declined else "declined"
        return "pass"


@dataclass(frozen=True)
class Report:
    """Results of a run."""

    size: str
    results: Sequence[Result]
    refusals: Sequence[Refusal]

    @property
    def passed(self) -> bool:
        """Whether something ran, nothing failed, and every backend could run."""
        return any(r.passed for r in self.results) and not self.failures and not self.unusable

    @property
    def unusable(self) -> list[Refusal]:
        """Backends that seemed to be there and could run no case of an operator."""
        return [
            Refusal(operator, backend, group[0].declined, group[0].error.hint)
            for (operator, backend), group in self._groups().items()
            if isinstance(group[0].error, BackendUnavailable) and _unusable(group)
        ]

    def _groups(self) -> dict[tuple[str, str], list[Result]]:
        groups: dict[tuple[str, str], list[Result]] = {}
        for result in self.results:
            groups.setdefault((result.case.operator, result.backend), []).append(result)
        return groups

    @property
    def failures(self) -> list[Result]:
        """Results with a problem."""
        return [result for result in self.results if result.figures.problem]

    @property
    def rows(self) -> list[Row]:
        """One per operator and backend, in the order of the run."""
        return [
            Row(
                operator,
                backend,
                len(group),
                sum(bool(r.figures.problem) for r in group),
                sum(bool(r.declined) for r in group),
                compare.worst(r.figures for r in group if not r.declined),
                _unusable(group),
            )
            for (operator, backend), group in self._groups().items()
        ]

    def as_dict(self) -> dict[str, object]:
        """The document of ``--json``; figures that are no numbers are null."""
        return {
            "schema": SCHEMA,
            "size": self.size,
            "passed": self.passed,
            "rows": [
                {
                    "operator": row.operator,
                    "backend": row.backend,
                    "cases": row.cases,
                    "failed": row.failed,
                    "declined": row.declined,
                    "max_error": _number(row.figures.max_error),
                    "budget": _number(row.figures.limit),
                    "cosine_difference": _number(row.figures.cosine),
                    "index_recall": row.figures.recall,
                    "passed": not row.failed and row.cases > row.declined,
                }
                for row in self.rows
            ],
            "failures": [
                {
                    "operator": r.case.operator,
                    "backend": r.backend,
                    "case": str(r.case),
                    "problem": r.figures.problem,
                }
                for r in self.failures
            ],
            "declined": [
                {
                    "operator": r.case.operator,
                    "backend": r.backend,
                    "case": str(r.case),
                    "reason": r.declined,
                }
                for r in self.results
                if r.declined
            ],
            "unavailable": [
                {"operator": r.operator, "backend": r.backend, "reason": r.reason, "hint": r.hint}
                for r in (*self.refusals, *self.unusable)
            ],
        }

    def as_text(self) -> str:
        """The table, then what failed, what was declined and what cannot run here."""
        cells = [_HEADER, *map(_cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if 2 <= i < 7 else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        for failure in self.failures:
            name = f"{failure.backend} {failure.case.operator} {failure.case}"
            lines += ["", f"failed: {name}", f"  {failure.figures.problem}"]
        declined = (r for group in self._groups().values() if not _unusable(group) for r in group)
        reasons = {(r.backend, r.declined): r for r in declined if r.declined}
        lines += [f"declined by {backend}: {reason}" for backend, reason in reasons]
        refusals = (*self.refusals, *self.unusable)
        lines += [f"{r.backend} {r.operator}: {r.reason}; {r.hint}" for r in refusals]
        return "\n".join(lines)


def _unusable(group: Sequence[Result]) -> bool:
    return all(isinstance(result.error, BackendUnavailable) for result in group)


def _cells(row: Row) -> tuple[str, ...]:
    figures = row.figures
    recall = "-" if figures.recall is None else f"{figures.recall:.4f}"
    return (
        row.operator,
        row.backend,
        str(row.cases),
        f"{figures.max_error:.1e}",
        f"{figures.limit:.1e}",
        f"{figures.cosine:.1e}",
        recall,
        row.result,
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
