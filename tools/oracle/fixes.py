"""What ``glm5-ascend check --fix`` makes of wrong commands, for the real engines to judge.

Wrong commands are those of ``commands.toml`` and the ones that users reported.
"""

from __future__ import annotations

import shlex

from glm5_ascend.deploy.catalogue.hardware import hardware
from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.check.checks_flags import completed
from glm5_ascend.deploy.check.context import Context
from glm5_ascend.deploy.check.examine import examine, mend_all
from glm5_ascend.deploy.check.sites import read_sites
from tests.support.reports import reports
from tools.oracle.corpus import corpus
from tools.oracle.trials import Record
from tools.oracle.words import Command

_HARDWARE = {"A2": "a2:2", "A3": "a3:2", "A5": "950dt:2"}


def fixes(version: str) -> list[Record]:
    """Commands that ``--fix`` changes for a release: ``id``, ``chip``, ``rules``, ``left`` and the
    repaired ``command``.

    ``rules`` are those that hit before, ``left`` those of severity error that hit afterwards.
    """
    found = release(version)
    wrong = [(entry["id"], entry["chip"], entry["line"], None) for entry in corpus()]
    wrong += [
        (f"report {row['id']}", "A2" if "a2" in row.get("hw", "") else "A3", row["command"], row)
        for row in reports()
        if row.get("fixed")
    ]
    made = []
    for name, chip, text, row in wrong:
        machine = hardware(row["hw"]) if row and "hw" in row else None
        machine = hardware(_HARDWARE[chip]) if row is None else machine
        sites = read_sites(f"{name}.sh", text, found.switches)
        before = [Context(completed(s.command, found), found, machine, s.place) for s in sites]
        fixed = mend_all(before)
        if [one.command for one in before] == fixed:
            continue
        after = [Context(one, found, machine, s.place) for one, s in zip(fixed, sites, strict=True)]
        command = fixed[0]
        made.append(
            {
                "id": name,
                "chip": chip,
                "rules": sorted({f.rule for f in examine(before)}),
                "left": sorted({f.rule for f in examine(after) if f.severity == "error"}),
                "line": shlex.join(command.to_argv()),
                "command": Command(dict(command.env), command.to_argv()[1:]),
            }
        )
    return made
