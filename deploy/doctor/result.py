"""Results of the doctor's checks."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from glm5_ascend.deploy.catalogue.releases import Release
from glm5_ascend.deploy.doctor.machines import Machine

PASS, FAIL, ADVICE, SKIPPED = "pass", "fail", "advice", "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """One check on one machine, or on all of them together.

    Attributes:
        check: key of the table of checks.
        host: the machine; empty for what compares machines.
        status: ``pass``, ``fail``, ``advice`` (works, but slower) or ``skipped``.
        detail: what was seen, or why it was skipped.
    """

    check: str
    host: str
    status: str
    detail: str = ""

    def as_dict(self) -> dict[str, object]:
        """JSON form, with what helps where it did not pass."""
        row = table()[self.check]
        found: dict[str, object] = {
            "check": self.check,
            "host": self.host,
            "status": self.status,
            "detail": self.detail,
        }
        if self.status in (FAIL, ADVICE):
            found |= {"remedy": row["remedy"], "source": row["source"]}
        return found


@dataclass(frozen=True)
class Survey:
    """All that the checks look at.

    Attributes:
        machines: every machine that answered.
        release: the release that versions are compared with, or None.
        ports: ports that must be free.
        addresses: the machine's ``HCCL_IF_IP`` and interface names as the caller's environment has
            them; only for this machine.
        wants_model: whether a checkpoint was asked for.
    """

    machines: tuple[Machine, ...]
    release: Release | None = None
    ports: tuple[int, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    wants_model: bool = False


Check = Callable[[Survey], Iterator[Result]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Register a check."""
    CHECKS.append(function)
    return function


@cache
def table() -> dict[str, dict[str, str]]:
    """Title, remedy and source of every check."""
    text = (Path(__file__).parent / "checks.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
