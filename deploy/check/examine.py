"""Runs every rule over the commands of a deployment, and repairs what can be repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glm5_ascend.deploy.check import (  # noqa: F401  (each registers its checks)
    checks_engine,
    checks_flags,
    checks_keys,
    checks_memory,
    checks_network,
    checks_numbers,
    checks_parallel,
    checks_place,
    checks_ranks,
    checks_transfer,
)
from glm5_ascend.deploy.check.command_line import ServeCommand
from glm5_ascend.deploy.check.context import Context
from glm5_ascend.deploy.check.finding import NOTE, Finding, worst_first
from glm5_ascend.deploy.check.rule import Mend, judge

_ROUNDS = 40


def with_peers(contexts: Sequence[Context]) -> list[Context]:
    """The same contexts, each knowing the others."""
    alone = [replace(context, peers=()) for context in contexts]
    return [
        replace(one, peers=tuple(other for other in alone if other is not one)) for one in alone
    ]


def examine(contexts: Sequence[Context]) -> list[Finding]:
    """Findings about the commands of one deployment, worst first."""
    found = [finding for one in with_peers(contexts) for finding, _ in judge(one)]
    return worst_first(found)


def mend_all(contexts: Sequence[Context]) -> list[ServeCommand]:
    """The commands with every error and warning removed that a rule knows how to remove.

    What one change uncovers is changed as well; what no rule can repair stays as it is.
    """
    current = list(contexts)
    for index in range(len(current)):
        refused: set[tuple[str, str]] = set()
        for _ in range(_ROUNDS):
            context = with_peers(current)[index]
            step = _next(context, refused)
            if step is None:
                break
            finding, mend = step
            changed = mend(context.command)
            if changed == context.command:
                refused.add((finding.rule, finding.where.item))
            current[index] = replace(context, command=changed, peers=())
    return [context.command for context in current]


def _next(context: Context, refused: set[tuple[str, str]]) -> tuple[Finding, Mend] | None:
    for finding, mend in judge(context):
        is_tried = (finding.rule, finding.where.item) in refused
        if mend is not None and finding.severity != NOTE and not is_tried:
            return finding, mend
    return None
