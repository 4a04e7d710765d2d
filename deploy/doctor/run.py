"""The work of ``glm5-ascend doctor``: ask the machines, judge, or read a log."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glm5_ascend.console import one_line
from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.doctor import checks_host, checks_npu  # noqa: F401  (register checks)
from glm5_ascend.deploy.doctor.log import Cause, causes, memory_line
from glm5_ascend.deploy.doctor.machines import LOCAL, Ask, ask_shell, parse_nodes, survey
from glm5_ascend.deploy.doctor.ping import ping_matrix
from glm5_ascend.deploy.doctor.result import (
    ADVICE,
    CHECKS,
    FAIL,
    PASS,
    SKIPPED,
    Result,
    Survey,
    table,
)
from glm5_ascend.errors import ExitCode

SCHEMA = 1
_LONGEST_LINE = 1 << 12


@dataclass(frozen=True)
class Diagnosis:
    """Results of the checks, or causes found in a log."""

    results: list[Result] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    memory: Mapping[str, float] = field(default_factory=dict)
    log: Path | None = None

    @property
    def exit_code(self) -> ExitCode:
        """5 where a check failed, 1 where the log names a cause."""
        if self.log is not None:
            return ExitCode.INPUT if self.causes else ExitCode.DONE
        failed = any(result.status == FAIL for result in self.results)
        return ExitCode.PREFLIGHT if failed else ExitCode.DONE

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {
            "schema": SCHEMA,
            "passed": self.exit_code is ExitCode.DONE,
            "results": [result.as_dict() for result in self.results],
            "causes": [cause.as_dict() for cause in self.causes],
            "memory_gib": dict(self.memory),
        }

    def as_text(self) -> str:
        """A line per check and what helps; or the causes in a log."""
        return self._log_text() if self.log is not None else self._results_text()

    def _results_text(self) -> str:
        lines = []
        order = list(table())
        for result in sorted(self.results, key=lambda r: order.index(r.check)):
            row = table()[result.check]
            where = f" [{result.host}]" if result.host else ""
            detail = f": {one_line(result.detail)}" if result.detail else ""
            lines.append(f"{result.status:<8}{row['title']}{where}{detail}")
            if result.status in (FAIL, ADVICE):
                lines += [f"        remedy: {row['remedy']}", f"        source: {row['source']}"]
        counts = [result.status for result in self.results]
        lines.append(
            f"{counts.count(PASS)} passed, {counts.count(FAIL)} failed,"
            f" {counts.count(ADVICE)} advised, {counts.count(SKIPPED)} skipped"
        )
        return "\n".join(lines)

    def _log_text(self) -> str:
        lines = []
        for cause in self.causes:
            times = f" ({cause.count} lines)" if cause.count > 1 else ""
            lines += [
                f"line {cause.line}{times}: {one_line(cause.text)}",
                f"    cause: {one_line(cause.cause)}",
                f"    remedy: {one_line(cause.remedy)}",
                f"    source: {cause.source}",
            ]
        if self.memory:
            parts = ", ".join(f"{name} {size:g} GiB" for name, size in self.memory.items())
            lines.append(f"memory as logged: {parts}")
        if not self.causes:
            lines.append("no known failure is in this log")
        return "\n".join(lines)


def diagnose_log(path: Path) -> Diagnosis:
    """Causes in a log file, read once and a line at a time: logs of days are larger than memory.

    Raises:
        OSError: it cannot be opened, or is a device, which has no end.
    """
    memory: dict[str, float] = {}
    if stat.S_ISCHR(path.stat().st_mode):
        raise OSError(errno.EINVAL, "a device, not a log", str(path))

    def lines() -> Iterator[str]:
        with path.open(encoding="utf-8", errors="replace") as stream:
            # A line without an end comes in parts.
            while line := stream.readline(_LONGEST_LINE):
                if not memory:
                    memory.update(memory_line([line]))
                yield line

    return Diagnosis(causes=causes(lines()), memory=memory, log=path)


def diagnose(
    nodes: str | None,
    *,
    engine: str | None = None,
    model: str | None = None,
    ports: Sequence[int] = (),
    ask: Ask = ask_shell,
    environ: Mapping[str, str] = os.environ,
) -> Diagnosis:
    """Every check on this machine, or on all ``nodes``.

    Args:
        nodes: ``u@h1,h2`` or ``@file``; None for this machine.
        engine: release whose versions are wanted, or None.
        model: folder of the checkpoint on each machine, or None.
        ports: that must be free.
        ask: how a machine is asked; tests put recorded answers here.

    Raises:
        Glm5Error: no hosts, or an unknown release.
    """
    hosts = [LOCAL] if nodes is None else parse_nodes(nodes)
    found = release(engine) if engine else None
    machines = survey(hosts, model, ask)
    results = [Result("reachable", m.host, FAIL if m.error else PASS, m.error) for m in machines]
    alive = tuple(machine for machine in machines if not machine.error)
    if alive:
        seen = Survey(alive, found, tuple(ports), environ, wants_model=model is not None)
        results += [result for function in CHECKS for result in function(seen)]
        results += ping_matrix(alive, ask)
    return Diagnosis(results=results)
