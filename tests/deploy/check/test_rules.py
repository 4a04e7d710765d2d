"""Every rule: it hits what is wrong, hits it in other words, and leaves the neighbour alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm5_ascend.deploy.check.examine import examine, mend_all
from glm5_ascend.deploy.check.finding import SEVERITIES
from glm5_ascend.deploy.check.rule import rules
from tests.deploy.check.cases import RULES, of_case

# Rules that need a checkpoint; test_checkpoint.py has them.
ELSEWHERE = {
    "checkpoint",
    "checkpoint-warning",
    "checkpoint-format",
    "checkpoint-c8",
    "checkpoint-mtp",
}


@pytest.mark.parametrize("kind", ["hit", "also"])
@pytest.mark.parametrize("rule", RULES)
def test_hits(rule: str, kind: str) -> None:
    findings = examine(of_case(RULES[rule], kind))
    assert rule in {finding.rule for finding in findings}


@pytest.mark.parametrize("rule", RULES)
def test_leaves_the_near_miss_alone(rule: str) -> None:
    findings = examine(of_case(RULES[rule], "miss"))
    assert rule not in {finding.rule for finding in findings}


@pytest.mark.parametrize("kind", ["hit", "also"])
@pytest.mark.parametrize("rule", RULES)
def test_repairs_what_it_says(rule: str, kind: str) -> None:
    contexts = of_case(RULES[rule], kind)
    fixed = mend_all(contexts)
    again = [replace(old, command=new) for old, new in zip(contexts, fixed, strict=True)]
    left = {finding.rule for finding in examine(again)}
    assert (rule in left) == RULES[rule].get("left", False)


def test_every_rule_has_cases() -> None:
    assert set(RULES) | ELSEWHERE == set(rules())
    assert not set(RULES) & ELSEWHERE


def test_every_rule_is_complete() -> None:
    for name, rule in rules().items():
        assert rule.verdicts, name
        for verdict in rule.verdicts:
            assert verdict.severity in SEVERITIES
            assert verdict.effect, name
            assert verdict.source, name
        spans = [v for v in rule.verdicts if v.covers((0, 30))]
        assert len(spans) <= 1, f"{name} has two verdicts for one series"
