"""Findings as SARIF 2.1.0, which code review tools read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glm5_ascend import __version__
from glm5_ascend.deploy.check.finding import Finding
from glm5_ascend.deploy.check.rule import rules

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """One run with its rules and results; a finding without a file has no location."""
    used = list(dict.fromkeys(finding.rule for finding in findings))
    driver = {
        "name": "glm5-ascend check",
        "version": __version__,
        "rules": [_rule(name) for name in used],
    }
    results = [_result(finding, used.index(finding.rule)) for finding in findings]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _rule(name: str) -> dict[str, Any]:
    found = rules().get(name)
    text = found.problem if found else name
    help_text = found.fix if found else ""
    return {"id": name, "shortDescription": {"text": text}, "help": {"text": help_text or text}}


def _result(finding: Finding, index: int) -> dict[str, Any]:
    text = f"{finding.message}. {finding.why}. {finding.fix}. Source: {finding.source}"
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": text},
    }
    if finding.where.file and finding.where.line:
        result["locations"] = [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": finding.where.file},
                    "region": {"startLine": finding.where.line},
                }
            }
        ]
    return result
