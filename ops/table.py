"""The table of ``glm5-ascend ops``: operators, backends, and the reason of each refusal."""

from __future__ import annotations

from dataclasses import dataclass

from glm5_ascend.ops import dispatch
from glm5_ascend.ops.dispatch import Availability

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Table:
    """Availability of every operator with every backend, and what ``auto`` takes on a CPU."""

    rows: list[Availability]
    auto: str

    def as_dict(self) -> dict[str, object]:
        """The document of ``--json``; reason and hint are null where the backend can run."""
        operators = [
            {
                "operator": row.operator,
                "backend": row.backend,
                "available": not row.reason,
                "reason": row.reason or None,
                "hint": row.hint or None,
            }
            for row in self.rows
        ]
        return {"schema": SCHEMA, "auto_on_cpu": self.auto, "backends": operators}

    def as_text(self) -> str:
        """One line per operator, then one per backend and reason."""
        backends = list(dict.fromkeys(row.backend for row in self.rows))
        width = max(len(row.operator) for row in self.rows)
        lines = [f"{'':{width}}  {'  '.join(backends)}"]
        for operator in dict.fromkeys(row.operator for row in self.rows):
            marks = {
                r.backend: "-" if r.reason else "yes" for r in self.rows if r.operator == operator
            }
            cells = "  ".join(f"{marks[name]:{len(name)}}" for name in backends)
            lines.append(f"{operator:{width}}  {cells}".rstrip())
        lines += ["", f"auto on a CPU: {self.auto} (reference for float64)", *self._reasons()]
        return "\n".join(lines)

    def _reasons(self) -> list[str]:
        count = len({row.operator for row in self.rows})
        refused: dict[tuple[str, str, str], list[str]] = {}
        order = list(dict.fromkeys(row.backend for row in self.rows))
        for row in sorted(self.rows, key=lambda row: order.index(row.backend)):
            if row.reason:
                refused.setdefault((row.backend, row.reason, row.hint), []).append(row.operator)
        lines = []
        for (backend, reason, hint), names in refused.items():
            which = "" if len(names) == count else f" ({', '.join(names)})"
            lines.append(f"{backend}{which}: {reason}; {hint}")
        return lines


def table() -> Table:
    """The table of this machine; imports no vendor package and compiles nothing."""
    return Table(dispatch.availability(), dispatch.default("cpu"))
