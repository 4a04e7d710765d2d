"""Whether the command's weights, cache and buffers fit into a die: the model of ``fit``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from glm5_ascend.deploy.check.checks_flags import SIZES, is_below_one
from glm5_ascend.deploy.check.command_line import Option
from glm5_ascend.deploy.check.context import Context
from glm5_ascend.deploy.check.rule import Condition, check
from glm5_ascend.deploy.memory.bill import bill
from glm5_ascend.deploy.memory.verdict import memory_verdict, settings_of

_OPEN = ("--data-parallel-size", "--tensor-parallel-size")
# The model's weights are within 5 % of logged ones; closer than that it cannot tell.
_UNSURE = 0.05


@check
def memory(context: Context) -> Iterator[Condition]:
    where, release = context.hardware, context.release.release
    if where is None or context.has_open_sizes:
        return
    command = context.command
    if any(is_below_one(name, command.text(name, "1")) for name in SIZES):
        return  # size-zero says it
    # A template leaves its sizes open; the memory model wants numbers.
    sizes = {name: str(context.size(name)) for name in _OPEN if command.given(name)}
    options = tuple(
        Option(o.name, (sizes[o.name],)) if o.name in sizes else o for o in command.options
    )
    sized = replace(command, options=options)
    found, settings = memory_verdict(sized, where, release), settings_of(sized, where, release)
    if found is None or settings is None:
        return
    modelled = bill(settings)
    if modelled.margin >= 0:
        return  # refused for a reason that another rule names
    is_close = modelled.margin > -_UNSURE * modelled.weights
    detail = f"{found.message}; {found.why.partition(';')[0]}"
    yield Condition("memory-close" if is_close else "memory", found.where.item, detail, found.fix)
