"""Files changed in place hold exactly the command that was meant, for every rule's command."""

from __future__ import annotations

import pytest

from glm5_ascend.deploy.catalogue.hardware import hardware
from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.check.checks_flags import completed
from glm5_ascend.deploy.check.context import Context
from glm5_ascend.deploy.check.examine import mend_all
from glm5_ascend.deploy.check.patch import patched
from glm5_ascend.deploy.check.sites import read_sites
from tests.deploy.check.cases import RULES, filled

SCRIPTS = [name for name in RULES if not RULES[name]["hit"].startswith("docker")]


@pytest.mark.parametrize("rule", SCRIPTS)
def test_the_text_says_what_was_meant(rule: str) -> None:
    case = RULES[rule]
    found = release(case.get("for", "0.30"))
    machine = hardware(case["hw"]) if "hw" in case else None
    text = filled(case["hit"], case.get("base", "a3"))
    sites = read_sites("x.sh", text, found.switches)
    before = [
        Context(completed(s.command, found), found, machine, s.place, s.launch) for s in sites
    ]
    fixed = mend_all(before)
    new = patched(text, list(zip(sites, fixed, strict=True)))
    again = read_sites("x.sh", new, found.switches)
    assert [s.command.to_argv() for s in again] == [one.to_argv() for one in fixed]
    assert [dict(s.command.env) for s in again] == [dict(one.env) for one in fixed]
