"""``glm5-ascend serve --plan FILE --simulate``: start what a plan says, clipped, on this CPU."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glm5_ascend import assets
from glm5_ascend.console import note, put
from glm5_ascend.deploy import engine as engines
from glm5_ascend.deploy.catalogue.models import model as known_model
from glm5_ascend.deploy.command import Launch, cpu_launch
from glm5_ascend.deploy.engine import Engine
from glm5_ascend.deploy.plan_file import Plan, PlanError
from glm5_ascend.deploy.preflight import check_all
from glm5_ascend.deploy.render.place import BEHIND_PROXY, PORT, Place, glm5_title, is_split
from glm5_ascend.deploy.serve import foreground, ready_timeout
from glm5_ascend.deploy.simulate.ports import planned, reserved
from glm5_ascend.deploy.simulate.split import Prefill
from glm5_ascend.deploy.simulate.translate import StandIn, Translation, translate
from glm5_ascend.deploy.supervise import Child, caught_signals, child_failed
from glm5_ascend.deploy.vllm_args import VllmArgs, whole_number
from glm5_ascend.errors import ExitCode, PreflightError

SMALL_MODEL = Path(assets.__file__).parent / "small-glm5"
_CACHES = "caches"
# Two engines are to have ports above the proxy's.
_LAST_PORT = 65_535 - BEHIND_PROXY - 1
_BESIDE = ("--port", "--served-model-name")
# What the servers of the plan have and a simulation needs not: named so where it is dropped.
_ADDRESS, _INTERFACE = "ADDRESS", "INTERFACE"


@dataclass(frozen=True, slots=True)
class Simulation:
    """What the user asked for.

    Attributes:
        plan: plan file.
        model: checkpoint in place of the small model.
        unused: what was given for the plan's servers, said to be unused.
        vllm_args: port and model name.
        op_backend: operator backend of the simulator.
    """

    plan: Path
    model: Path | None = None
    unused: Sequence[str] = ()
    vllm_args: Sequence[str] = ()
    op_backend: str = "auto"


def run(wanted: Simulation, *, dry_run: bool) -> int:
    """Serve the whole plan on this CPU in the foreground until it ends or is interrupted.

    Args:
        dry_run: print the commands on stdout and the mapping on stderr, and stop.

    Returns:
        An exit code: 0, or 130 after Ctrl-C or SIGTERM.

    Raises:
        Glm5Error: the plan or the model is at fault (1), the CPU engine cannot run here (5), it
            never became healthy (6) or ended with an error (7).
    """
    plan = Plan.load(wanted.plan)
    place = _place(plan, wanted)
    quantise = wanted.model is None and plan.quant != "bf16"
    model = StandIn.of(wanted.model or SMALL_MODEL, quantise)
    engines_of = 2 if is_split(plan) else 1
    if dry_run:
        folder = Path()
        ports = planned(place.port, engines_of)
        found = translate(plan, place, model, folder / _CACHES, ports)
        _announce(plan, model, quantise, found, wanted.unused)
        served = _served(model, plan.quant, folder) if quantise else model.source
        if quantise:
            put(shlex.join(_quantize(model.source, served, plan.quant)))
        put("\n".join(_launch(one, served, wanted.op_backend).render() for one in found))
        return ExitCode.DONE
    with (
        reserved(place.port, engines_of) as ports,
        tempfile.TemporaryDirectory(prefix="glm5-ascend-") as name,
    ):
        folder = Path(name)
        (folder / _CACHES).mkdir()
        found = translate(plan, place, model, folder / _CACHES, ports)
        _announce(plan, model, quantise, found, wanted.unused)
        _check(model, found, wanted.op_backend)
        served = model.source
        if quantise:
            served = _served(model, plan.quant, folder)
            if not _made(_quantize(model.source, served, plan.quant)):
                return ExitCode.INTERRUPTED
        launches = [_launch(one, served, wanted.op_backend) for one in found]
        return _run(launches, found, place.port)


def _check(model: StandIn, found: Sequence[Translation], op_backend: str) -> None:
    engines.check_backend(Engine.CPU, op_backend)
    facts = engines.detect()
    if facts.vllm_ascend:
        raise PreflightError(
            "a simulation needs vLLM for CPUs, and vllm-ascend is installed here",
            f"use another virtual environment with {engines.INSTALL}",
        )
    for one in found:
        engines.check(Engine.CPU, facts, {**os.environ, **one.environ})
        check_all(model.source, VllmArgs.parse(one.words), Engine.CPU)


def _run(launches: Sequence[Launch], found: Sequence[Translation], port: int) -> int:
    """Run the engine, or decode with prefill and proxy beside it."""
    timeout_s = ready_timeout(os.environ)
    args = VllmArgs.parse(found[0].words)
    if len(launches) == 1:
        code = foreground(launches[0], args, timeout_s)
    else:
        beside = Prefill(launches[1], port, found[1].port, found[0].port, timeout_s)
        try:
            code = foreground(launches[0], args, timeout_s, beside)
        finally:
            beside.stop()
    if code == ExitCode.DONE:
        # Nobody asked it to: so ends vLLM when one of its engines dies.
        raise child_failed("the engine", code, "one of its processes failed: see its log above")
    return code


def _place(plan: Plan, wanted: Simulation) -> Place:
    args = VllmArgs.parse(wanted.vllm_args)
    for name in args.values:
        if name not in _BESIDE:
            raise PlanError(
                f"{name} is given beside a plan", f"put it into `flags` of {wanted.plan}"
            )
    port = whole_number(args.value("--port", str(PORT)))
    if port is None or not 1 <= port <= _LAST_PORT:
        raise PlanError(
            f"port {args.value('--port', '')} is out of range",
            f"give a port from 1 to {_LAST_PORT}",
        )
    name = args.value("--served-model-name", "") or glm5_title(plan)
    return Place("/models", (_ADDRESS,) * plan.servers, _INTERFACE, port, name)


def _announce(
    plan: Plan,
    model: StandIn,
    quantise: bool,
    found: Sequence[Translation],
    unused: Sequence[str],
) -> None:
    note("simulation on this CPU: no NPU is involved, and speed says nothing about Ascend")
    how = f", quantised to {plan.quant} for this run," if quantise else ""
    note(f"model: {model.source}{how} stands in for {known_model(plan.model).title} {plan.quant}")
    for one in found:
        note(f"layout: {one.layout}")
    roles: dict[str, list[str]] = {}
    for one in found:
        for line in one.notes:
            roles.setdefault(line, []).append(one.role)
    for line, names in roles.items():
        note(line if len(found) == 1 else f"{' and '.join(names)}: {line}")
    if len(found) > 1:
        note("changed: the proxy is this program's")
    if unused:
        note(f"not used: {', '.join(unused)} (for the plan's servers)")


def _launch(one: Translation, served: Path, op_backend: str) -> Launch:
    launch = cpu_launch(served, one.words, os.environ, op_backend)
    environ = {**launch.environ, **one.environ}
    return replace(launch, environ=environ, defaults=(*launch.defaults, *one.flags), user=())


def _served(model: StandIn, scheme: str, folder: Path) -> Path:
    return folder / f"{model.source.name}-{scheme}"


def _quantize(source: Path, target: Path, scheme: str) -> list[str]:
    words = [sys.executable, "-P", "-m", "glm5_ascend", "quantize", str(source), str(target)]
    return [*words, "--scheme", scheme]


def _made(quantize: Sequence[str]) -> bool:
    """Run the quantiser; false when it was interrupted.

    Raises:
        ChildFailed: it failed.
    """
    with caught_signals() as caught:
        child = Child(quantize, os.environ, output=2)
        try:
            code = None
            while code is None and not caught:
                code = child.wait(0.1)
        finally:
            child.stop(1.0)
    if code and not caught:
        raise child_failed("quantising", code, "its messages above say why")
    return not caught
