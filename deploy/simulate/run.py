"""``glm5-ascend serve --plan FILE --simulate``: start what a plan says, clipped, on this CPU."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from glm5_ascend.deploy.render.place import PORT, Place
from glm5_ascend.deploy.serve import foreground, ready_timeout
from glm5_ascend.deploy.simulate.translate import Translation, translate
from glm5_ascend.deploy.supervise import Child, caught_signals, child_failed
from glm5_ascend.deploy.vllm_args import VllmArgs, whole_number
from glm5_ascend.errors import ExitCode, PreflightError

SMALL_MODEL = Path(assets.__file__).parent / "small-glm5"
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
    source = wanted.model or SMALL_MODEL
    quantise = wanted.model is None and plan.quant != "bf16"
    found = translate(plan, place, source, quantise)
    _announce(plan, source, quantise, found, wanted.unused)
    if dry_run:
        copy = Path(f"{source.name}-{plan.quant}") if quantise else source
        if quantise:
            put(shlex.join(_quantize(source, copy, plan.quant)))
        put(_launch(found, copy, wanted.op_backend).render())
        return ExitCode.DONE
    engines.check_backend(Engine.CPU, wanted.op_backend)
    facts = engines.detect()
    if facts.vllm_ascend:
        raise PreflightError(
            "a simulation needs vLLM for CPUs, and vllm-ascend is installed here",
            f"use another virtual environment with {engines.INSTALL}",
        )
    engines.check(Engine.CPU, facts, {**os.environ, **found.environ})
    args = VllmArgs.parse([word for flag in found.flags for word in flag])
    check_all(source, args, Engine.CPU)
    timeout_s = ready_timeout(os.environ)
    with _checkpoint(source, plan.quant if quantise else None) as served:
        if served is None:
            return ExitCode.INTERRUPTED
        code = foreground(_launch(found, served, wanted.op_backend), args, timeout_s)
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
    if port is None or not 1 <= port < 65_436:
        raise PlanError(
            f"port {args.value('--port', '')} is out of range", "give a port from 1 to 65435"
        )
    name = args.value("--served-model-name", "") or known_model(plan.model).title
    return Place("/models", (_ADDRESS,) * plan.servers, _INTERFACE, port, name)


def _announce(
    plan: Plan, source: Path, quantise: bool, found: Translation, unused: Sequence[str]
) -> None:
    note("simulation on this CPU: no NPU is involved, and speed says nothing about Ascend")
    note(f"layout: {found.layout}")
    how = f", quantised to {plan.quant} for this run," if quantise else ""
    note(f"model: {source}{how} stands in for {known_model(plan.model).title} {plan.quant}")
    for line in found.notes:
        note(line)
    if unused:
        note(f"not used: {', '.join(unused)} (for the plan's servers)")


def _launch(found: Translation, served: Path, op_backend: str) -> Launch:
    words = [word for flag in found.flags for word in flag]
    launch = cpu_launch(served, words, os.environ, op_backend)
    environ = {**launch.environ, **found.environ}
    return replace(launch, environ=environ, defaults=(*launch.defaults, *found.flags), user=())


def _quantize(source: Path, target: Path, scheme: str) -> list[str]:
    words = [sys.executable, "-P", "-m", "glm5_ascend", "quantize", str(source), str(target)]
    return [*words, "--scheme", scheme]


@contextmanager
def _checkpoint(source: Path, scheme: str | None) -> Iterator[Path | None]:
    """What is served: ``source``, or a quantised copy while the block runs; None if interrupted.

    Raises:
        ChildFailed: it could not be quantised.
    """
    if scheme is None:
        yield source
        return
    with caught_signals() as caught, tempfile.TemporaryDirectory(prefix="glm5-ascend-") as folder:
        target = Path(folder) / f"{source.name}-{scheme}"
        note(f"quantising {source.name} to {scheme}")
        child = Child(_quantize(source, target, scheme), {**os.environ}, output=2)
        try:
            code = None
            while code is None and not caught:
                code = child.wait(0.1)
        finally:
            child.stop(1.0)
        if code and not caught:
            raise child_failed("quantising", code, "its messages above say why")
        yield None if caught else target
