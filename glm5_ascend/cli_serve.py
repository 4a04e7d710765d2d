"""``serve``: parse, import the work, run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from glm5_ascend.cli_base import DIRECTORY, Glm5Command
from glm5_ascend.cli_deploy import HOSTS_HELP, PROXY_HELP
from glm5_ascend.env import OP_BACKENDS

_SITE = ("hosts", "nic", "proxy_script")


@click.command(
    cls=Glm5Command,
    short_help="Serve a checkpoint over the OpenAI API.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("model", metavar="MODEL", required=False)
@click.argument(
    "vllm_args", metavar="[-- VLLM FLAGS...]", nargs=-1, type=click.UNPROCESSED, required=False
)
@click.option("--dry-run", is_flag=True, help="Print environment and command, start nothing.")
@click.option(
    "--op-backend",
    type=click.Choice(OP_BACKENDS),
    default="auto",
    help="Implementation of the fused operators.",
)
@click.option("--plan", type=DIRECTORY, metavar="FILE", help="Serve a node's part of a plan.")
@click.option("--node-rank", metavar="N", help="Number of the node, with --plan.")
@click.option("--hosts", metavar="IP,IP", help=HOSTS_HELP)
@click.option("--nic", metavar="NAME", help="Interface of these addresses.")
@click.option("--proxy-script", metavar="FILE", help=PROXY_HELP)
@click.option("--external-dp", is_flag=True, help="With --plan: a server per data-parallel rank.")
@click.option("--simulate", is_flag=True, help="Run the whole plan on this CPU, clipped.")
@click.option("--model", "stand_in", metavar="DIR", help="With --simulate, for the small model.")
def serve(
    model: str | None, vllm_args: tuple[str, ...], dry_run: bool, op_backend: str, **part: Any
) -> int:
    """Serve the checkpoint MODEL over the OpenAI API.

    Runs vllm-ascend where there is an NPU, otherwise vLLM on this CPU through the plugin of this
    project. Every flag that is not listed below goes to vLLM verbatim; after `--`, all of them do.

    On an NPU nothing is added. On a CPU these are, where you do not give them: --host 127.0.0.1,
    the directory's name as model name, tool calls and reasoning on, eager mode, 256 MiB of cache.
    --dry-run prints everything.

    With --plan, on an NPU, it runs node N of what `plan --out` wrote; MODEL is the checkpoint,
    /models/MODEL-QUANT without it. Flags of vLLM belong into the plan then. The first prefill
    server also starts the proxy, once every instance answers.

    With --plan and --simulate the whole plan runs on this CPU: DP and TP clipped to 4 processes
    around the small model that ships with the package, quantised as the plan says. What is changed
    or dropped is printed. `accept` tells such an endpoint from a real one.

    \b
    Examples:
      glm5-ascend serve GLM-5.2-w4a8 --port 8000 --max-model-len 4096
      glm5-ascend serve --plan plan.yaml --node-rank 1 --hosts 10.0.0.1,10.0.0.2 --nic eth0
      glm5-ascend serve --plan plan.yaml --simulate
    """
    simulate, stand_in = part.pop("simulate"), part.pop("stand_in")
    if simulate:
        return _simulate(model, vllm_args, dry_run, op_backend, stand_in, part)
    if stand_in is not None:
        vllm_args = ("--model", stand_in, *vllm_args)  # vLLM's
    if part["plan"] is not None:
        return _serve_part(model, vllm_args, dry_run, op_backend, part)
    if part["external_dp"] or any(part[name] is not None for name in _SITE):
        raise click.UsageError("--hosts, --nic, --proxy-script and --external-dp go with --plan")
    if model is None:
        raise click.UsageError("missing argument 'MODEL'")
    if part["node_rank"] is not None:
        vllm_args = ("--node-rank", part["node_rank"], *vllm_args)  # vLLM has one too
    if not model:
        raise click.UsageError("MODEL is empty")
    if model.startswith("-"):
        raise click.UsageError(f"give MODEL before the flags of vLLM, not {model!r} first")
    from glm5_ascend.deploy.serve import run

    return run(Path(model), list(vllm_args), dry_run=dry_run, op_backend=op_backend)


def _serve_part(
    model: str | None,
    vllm_args: tuple[str, ...],
    dry_run: bool,
    op_backend: str,
    part: dict[str, Any],
) -> int:
    rank = part["node_rank"] or ""
    if not (rank.isascii() and rank.isdigit()):
        raise click.UsageError("give --node-rank, a number from 0, with --plan")
    if op_backend != "auto":
        raise click.UsageError("--op-backend is for the CPU engine, a plan for NPUs")
    if model is not None and model.startswith("-"):
        vllm_args = (model, *vllm_args)
        model = None
    from glm5_ascend.deploy.render.launch import Part, run

    where = {name: part[name] for name in (*_SITE, "external_dp")}
    return run(Part(part["plan"], int(rank), model, **where, vllm_args=vllm_args), dry_run=dry_run)


def _simulate(
    model: str | None,
    vllm_args: tuple[str, ...],
    dry_run: bool,
    op_backend: str,
    stand_in: str | None,
    part: dict[str, Any],
) -> int:
    if part["plan"] is None:
        raise click.UsageError("--simulate goes with --plan")
    if stand_in == "":
        raise click.UsageError("--model is empty")
    if model is not None and model.startswith("-"):
        vllm_args = (model, *vllm_args)
        model = None
    from glm5_ascend.deploy.simulate.run import Simulation, run

    names = ("node_rank", *_SITE)
    unused = [f"--{name.replace('_', '-')} {part[name]}" for name in names if part[name]]
    unused += ["--external-dp"] if part["external_dp"] else []
    unused = [*([model] if model else []), *unused]
    source = None if stand_in is None else Path(stand_in)
    wanted = Simulation(part["plan"], source, unused, vllm_args, op_backend)
    return run(wanted, dry_run=dry_run)
