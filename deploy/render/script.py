"""Shell scripts: what a server runs, on the host or inside a container."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.plan_file import Plan
from glm5_ascend.deploy.render.nodes import Node, nodes, proxy_words
from glm5_ascend.deploy.render.place import VARIABLE, Place, is_split
from glm5_ascend.deploy.render.proxy import beside_engine, endpoints, proxy_node, waiting_body

# The Mooncake library sits in its Python package, which the loader does not search.
_LIBRARIES = """\
find='import importlib.util as u; print(u.find_spec("mooncake").submodule_search_locations[0])'
mooncake=$(python3 -c "$find")
export LD_LIBRARY_PATH="$mooncake:/usr/local/lib64:/usr/local/lib:${LD_LIBRARY_PATH:-}"
"""


def quoted(word: str) -> str:
    """A word for a shell; the known variables and ``$((LWS_WORKER_INDEX * 4))`` are left to it."""
    if VARIABLE.fullmatch(word):
        return word if word.startswith("$((") else f'"{word}"'
    return shlex.quote(word)


def lines_of(node: Node) -> str:
    """The serve command, one flag a line, without its variables."""
    command = node.command
    head = [*command.program, str(command.model)]
    rows = [head, *(option.words for option in command.options)]
    return " \\\n  ".join(" ".join(map(quoted, row)) for row in rows)


def body(plan: Plan, node: Node, *, exports: bool = True, before: str = "") -> str:
    """What a shell does on a node, ending in ``exec vllm serve``.

    Args:
        exports: set the variables too; containers get theirs from their runtime.
        before: text in front of the command.
    """
    text = "set -eu\n"
    if exports:
        text += "".join(
            f"export {name}={quoted(value)}\n" for name, value in node.command.env.items()
        )
    if is_split(plan):
        text += _LIBRARIES
    return f"{text}{before}exec {lines_of(node)}\n"


def _ranks(plan: Plan, ranks: Sequence[Node], before: str) -> str:
    """What a shell does where every rank is a server: start all, and end them with the first."""
    variables = ranks[0].command.env.items()
    own = "ASCEND_RT_VISIBLE_DEVICES"
    text = "set -eu\n"
    text += "".join(f"export {name}={quoted(value)}\n" for name, value in variables if name != own)
    text += f"{_LIBRARIES}{before}ranks=()\n"
    for node in ranks:
        dies = node.command.env[own]
        text += f"{own}={dies} {lines_of(node)} &\nranks+=($!)\n"
    return (
        f"{text}trap 'kill \"${{ranks[@]}}\" 2> /dev/null || true' EXIT\n"
        "trap 'exit 130' INT TERM\n"
        'wait -n "${ranks[@]}" || true\n'
        'echo "a rank has ended, so all of this server do" >&2\nexit 1\n'
    )


def proxy_body(plan: Plan, place: Place, hosts: Mapping[int, str] | None = None) -> str:
    """What a shell does to start the proxy; empty where there is none.

    Args:
        hosts: name of each instance's first server, where it is not its address.
    """
    words = proxy_words(plan, place, hosts)
    return waiting_body(words, endpoints(plan, place, hosts)) if words else ""


def files(plan: Plan, place: Place) -> dict[str, str]:
    """``node0.sh`` and so on.

    Where prefill and decode are apart, the first prefill server starts the proxy too, and
    ``proxy.sh`` starts it alone, for a machine without an engine.
    """
    made = {}
    found = nodes(plan, place)
    for first in (node for node in found if not node.slot):
        where = f" at {place.hosts[first.number]}" if place.hosts else ""
        engine = f"vllm-ascend {release(plan.release).text}"
        about = f"# {plan.model} {plan.quant}, {engine}: node {first.number}"
        proxy = ""
        if first.number == proxy_node(plan):
            proxy = beside_engine(proxy_words(plan, place), endpoints(plan, place))
        text = (
            body(plan, first, before=proxy)
            if first.slot is None
            else _ranks(plan, [node for node in found if node.number == first.number], proxy)
        )
        layout = plan.roles[first.instance].layout
        made[f"node{first.number}.sh"] = (
            f"#!/usr/bin/env bash\n{about}{where}, {first.role} {layout}\n{text}"
        )
    text = proxy_body(plan, place)
    if text:
        about = f"# node{proxy_node(plan)}.sh starts the proxy; this is for a machine of its own."
        made["proxy.sh"] = f"#!/usr/bin/env bash\n{about}\n{text}"
    return made
