"""Conditions that checks find in a folder, and the findings that rules make of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glm5_ascend.engine_releases import SERIES, Release
from glm5_ascend.verify.rules import RULES, Verdict

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Condition:
    """One fact about one tensor, key or file.

    Attributes:
        rule: key of :data:`~glm5_ascend.verify.rules.RULES`.
        subject: tensor, key or file.
        detail: what is wrong with it, words that follow the subject; may be empty.
    """

    rule: str
    subject: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.subject} {self.detail}".rstrip()


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, what the engine does about it, and what helps.

    Attributes:
        severity: ``"error"`` (refused, or wrong results) or ``"warning"``.
        rule: identifier, stable between versions of this tool.
        message: one sentence with the first subjects.
        fix: what to do.
        source: where the engine's behaviour is known from.
        subjects: every tensor, key or file concerned.
        engines: the releases that behave so, in words.
    """

    severity: str
    rule: str
    message: str
    fix: str
    source: str
    subjects: tuple[str, ...]
    engines: str

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {
            "severity": self.severity,
            "rule": self.rule,
            "message": self.message,
            "fix": self.fix,
            "source": self.source,
            "engines": self.engines,
            "subjects": list(self.subjects),
        }


def judge(conditions: Iterable[Condition], release: Release | None) -> list[Finding]:
    """One finding per rule and verdict, errors first.

    Args:
        conditions: what the checks found.
        release: the engine; None judges for all releases, and what only some of them mind becomes
            a warning that names them.
    """
    by_rule: dict[str, list[Condition]] = {}
    for condition in conditions:
        by_rule.setdefault(condition.rule, []).append(condition)
    findings: list[Finding] = []
    for rule, found in by_rule.items():
        verdicts = RULES[rule].verdicts
        if release is not None:
            findings += [
                _finding(rule, found, verdict, verdict.severity)
                for verdict in verdicts
                if verdict.covers(release.series)
            ]
            continue
        if RULES[rule].of_engine:
            continue
        fatal = {s for v in verdicts if v.severity == "error" for s in SERIES if v.covers(s)}
        for verdict in verdicts:
            severity = "error" if fatal == set(SERIES) else "warning"
            findings.append(_finding(rule, found, verdict, _milder(severity, verdict.severity)))
    return sorted(findings, key=lambda finding: finding.severity != "error")


def _finding(rule: str, found: list[Condition], verdict: Verdict, severity: str) -> Finding:
    shown = "; ".join(map(str, found[:_SHOWN]))
    more = f" (and {len(found) - _SHOWN:,} more)" if len(found) > _SHOWN else ""
    return Finding(
        severity=severity,
        rule=rule,
        message=f"{RULES[rule].problem}: {shown}{more}; {verdict.engines}: {verdict.effect}",
        fix=RULES[rule].fix,
        source=verdict.source,
        subjects=tuple(dict.fromkeys(condition.subject for condition in found)),
        engines=verdict.engines,
    )


def _milder(one: str, other: str) -> str:
    return "error" if one == other == "error" else "warning"
