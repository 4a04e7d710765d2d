"""Rules of ``check``: a table of verdicts by release, and small functions that see a condition."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.check.context import Context
from glm5_ascend.deploy.check.finding import Finding

Mend = Callable[[ServeCommand], ServeCommand]
Check = Callable[[Context], Iterator["Condition"]]
Series = tuple[int, int]

CHECKS: list[Check] = []
_TABLES = ("rules_flags.toml", "rules_engine.toml", "rules_deployment.toml")


@dataclass(frozen=True, slots=True)
class Condition:
    """What a check saw.

    Attributes:
        rule: key of the table.
        item: flag, key or variable.
        detail: what is the matter, words that follow the rule's problem.
        fix: what to do, where that depends on the command; else the rule's own words.
        mend: changes the command so that the condition is gone.
    """

    rule: str
    item: str
    detail: str = ""
    fix: str = ""
    mend: Mend | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the series from ``since`` to ``until`` do; None leaves a side open."""

    severity: str
    effect: str
    source: str
    since: Series | None
    until: Series | None

    def covers(self, series: Series) -> bool:
        """Whether it holds for a series such as (0, 23)."""
        return (self.since or series) <= series <= (self.until or series)


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition in words, what helps, and what each series does about it."""

    problem: str
    fix: str
    verdicts: tuple[Verdict, ...]


def check(function: Check) -> Check:
    """Register a function that sees conditions."""
    CHECKS.append(function)
    return function


@cache
def rules() -> dict[str, Rule]:
    """Every rule by its identifier."""
    found: dict[str, Rule] = {}
    for name in _TABLES:
        text = (Path(__file__).parent / name).read_text(encoding="utf-8")
        for rule, row in tomllib.loads(text).items():
            found[rule] = Rule(row["problem"], row["fix"], tuple(_verdicts(row)))
    return found


def _verdicts(row: dict[str, Any]) -> Iterator[Verdict]:
    for entry in row.get("verdicts", [row]):
        severity = next(word for word in ("error", "warning", "note") if word in entry)
        since, until = (_series(entry.get(side)) for side in ("since", "until"))
        yield Verdict(severity, entry[severity], entry["source"], since, until)


def _series(text: str | None) -> Series | None:
    if text is None:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)


def judge(context: Context) -> list[tuple[Finding, Mend | None]]:
    """What is wrong with one command, each with the change that removes it, if one is known."""
    found: list[tuple[Finding, Mend | None]] = []
    for function in CHECKS:
        for condition in function(context):
            rule = rules()[condition.rule]
            for verdict in rule.verdicts:
                if verdict.covers(context.release.series):
                    found.append((_finding(context, condition, rule, verdict), condition.mend))
    return found


def _finding(context: Context, condition: Condition, rule: Rule, verdict: Verdict) -> Finding:
    return Finding(
        severity=verdict.severity,
        rule=condition.rule,
        where=replace(context.place, item=condition.item),
        message=f"{rule.problem}{': ' if condition.detail else ''}{condition.detail}",
        why=f"vllm-ascend {context.release.text} {verdict.effect}",
        fix=condition.fix or rule.fix,
        source=verdict.source,
    )
