"""Which repair a checkpoint needs for an engine, decided before anything is touched."""

from __future__ import annotations

from pathlib import Path

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.engine_releases import Release
from glm5_ascend.quant.repair_draft import Draft, RepairPlan
from glm5_ascend.quant.repair_mends import MENDS
from glm5_ascend.verify.check import examine
from glm5_ascend.verify.findings import judge
from glm5_ascend.verify.rules import RULES

# Warnings that cost no more than a line of the description.
_TIDY = frozenset(("undescribed-other", "described-unknown", "description-part", "cache-mark"))


def make_plan(
    directory: Path, release: Release, source: CheckpointReader | None = None
) -> RepairPlan | None:
    """What repairing a checkpoint for an engine takes; None if its configuration is beyond repair.

    Args:
        directory: the checkpoint.
        release: the engine that must load it.
        source: what it was made from, if it is at hand.
    """
    folder, config, schemes = examine(directory)
    if config is None:
        return None
    wanted = {
        finding.rule
        for finding in judge(folder.conditions, release)
        if finding.severity == "error" or finding.rule in _TIDY
    }
    draft = Draft(RepairPlan(folder, config), schemes, source)
    for rule in [name for name in RULES if name in wanted]:
        found = [condition for condition in folder.conditions if condition.rule == rule]
        if rule in MENDS:
            MENDS[rule](draft, found)
        else:
            for condition in found:
                draft.refuse(condition, f"{condition.detail or 'lost'}; {RULES[rule].fix}".strip())
    draft.plan.reindex |= bool(draft.plan.added) and bool(folder.indexes)
    return draft.plan
