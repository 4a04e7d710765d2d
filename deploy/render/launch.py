"""``glm5-ascend serve --plan``: one node's part of a plan, on this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from glm5_ascend.console import note, put
from glm5_ascend.deploy import engine as engines
from glm5_ascend.deploy.catalogue.releases import release
from glm5_ascend.deploy.command import Launch
from glm5_ascend.deploy.engine import Engine, Facts
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.deploy.preflight import check_all
from glm5_ascend.deploy.render.nodes import Node, nodes
from glm5_ascend.deploy.render.place import PORT, Place, is_split, place_of
from glm5_ascend.deploy.render.proxy import Proxy
from glm5_ascend.deploy.render.ranks import OtherRanks
from glm5_ascend.deploy.serve import foreground, ready_timeout
from glm5_ascend.deploy.vllm_args import VllmArgs, whole_number
from glm5_ascend.errors import ExitCode, PreflightError, brief

# What may be said beside a plan; everything else belongs into it.
_BESIDE = ("--port", "--served-model-name")
_LIBRARIES = "LD_LIBRARY_PATH"


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of which plan, and where; ``render.place.place_of`` explains the site."""

    plan: Path
    node_rank: int
    checkpoint: str | None = None
    hosts: str | None = None
    nic: str | None = None
    proxy_script: str | None = None
    external_dp: bool = False
    vllm_args: Sequence[str] = ()


def run(part: Part, *, dry_run: bool) -> int:
    """Serve a node's part in the foreground until it ends or is interrupted.

    The first prefill server also runs the proxy, once every instance answers. With ``external_dp``
    the node has a server per data-parallel rank, which start and end together.

    Args:
        dry_run: print environment and command on stdout and stop.

    Returns:
        An exit code: 0, or 130 after Ctrl-C or SIGTERM.

    Raises:
        Glm5Error: the plan or the site is at fault (1), there is no NPU with vllm-ascend here (5),
            the engine never became healthy (6) or ended with an error (7).
    """
    plan = Plan.load(part.plan)
    place = _place(plan, part)
    ranks = _nodes(plan, place, part)
    node = ranks[0]
    facts = engines.detect()
    launches = [_launch(rank, facts, is_split(plan)) for rank in ranks]
    timeout_s = ready_timeout({**os.environ, **launches[0].environ})
    proxy = Proxy.of(plan, place, node.number, timeout_s)
    if dry_run:
        put("\n".join(launch.render() for launch in launches))
        if proxy is not None:
            note("and once every instance answers, the proxy:")
            note(shlex.join(proxy.words))
        return ExitCode.DONE
    engine = engines.choose(facts)
    if engine is not Engine.NPU:
        raise PreflightError(
            "a plan needs vllm-ascend and an NPU, and they are not here",
            "run this on the plan's servers; --dry-run prints the command",
        )
    engines.check(engine, facts, os.environ)
    parsed = [VllmArgs.parse(launch.command[2:]) for launch in launches]
    for args in parsed:
        check_all(Path(str(node.command.model)), args, engine)
    if is_split(plan) and _LIBRARIES not in launches[0].environ:
        raise PreflightError(
            "the package mooncake is not installed, which moves caches from prefill to decode",
            "run inside the vllm-ascend image",
        )
    if proxy is not None:
        proxy.check()
    _announce(plan, node)
    if len(ranks) == 1:
        return foreground(launches[0], parsed[0], timeout_s, proxy)
    others = [(launch, str(args.url)) for launch, args in zip(launches, parsed, strict=True)][1:]
    beside = OtherRanks(others, proxy, timeout_s)
    try:
        return foreground(launches[0], parsed[0], timeout_s, beside)
    finally:
        beside.stop()


def _place(plan: Plan, part: Part) -> Place:
    args = VllmArgs.parse(part.vllm_args)
    for name in args.values:
        if name not in _BESIDE:
            raise PlanError(f"{name} is given beside a plan", f"put it into `flags` of {part.plan}")
    text = args.value("--port", str(PORT))
    port = whole_number(text)
    if port is None:
        raise PlanError(f"port {brief(text)} is out of range", "give a port from 1 to 65335")
    return place_of(
        plan,
        checkpoint=part.checkpoint,
        hosts=part.hosts,
        nic=part.nic,
        port=port,
        name=args.value("--served-model-name", "") if args.has("--served-model-name") else None,
        proxy_script=part.proxy_script,
        external_dp=part.external_dp,
    )


def _nodes(plan: Plan, place: Place, part: Part) -> list[Node]:
    """What the node runs: one server, or one per rank."""
    every = nodes(plan, place)
    found = [node for node in every if node.number == part.node_rank]
    if not found:
        raise PlanError(
            f"{part.plan} has no node {part.node_rank}",
            f"its nodes are {', '.join(map(str, sorted({node.number for node in every})))}",
        )
    return found


def _launch(node: Node, facts: Facts, split: bool) -> Launch:
    command = node.command
    environ = dict(command.env)
    spec = find_spec("mooncake") if split else None
    if spec is not None and spec.submodule_search_locations:
        # The Mooncake library sits in its Python package, which the loader does not search.
        old = environ.get(_LIBRARIES, os.environ.get(_LIBRARIES, ""))
        folders = [spec.submodule_search_locations[0], "/usr/local/lib64", "/usr/local/lib", old]
        environ[_LIBRARIES] = ":".join(filter(None, folders))
    return Launch(
        environ=environ,
        head=(facts.vllm_command or "vllm", "serve", str(command.model)),
        defaults=tuple(tuple(option.words) for option in command.options),
        user=(),
        kept={},
    )


def _announce(plan: Plan, node: Node) -> None:
    role = plan.roles[node.instance]
    where = "with the API" if node.is_head else "headless"
    if node.slot is not None:
        where = f"{node.ranks} ranks, each a server with the API"
    note(f"node {node.number} of {plan.servers}: {role.role} {role.layout}, {where}")
    try:
        installed = metadata.version("vllm-ascend")
    except metadata.PackageNotFoundError:
        installed = "unknown"
    wanted = release(plan.release).text
    if installed != wanted:
        note(f"warning: the plan is for vllm-ascend {wanted}, installed is {installed}")
