"""``serve``: parse, import the work, run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from glm5_ascend.cli_base import DIRECTORY, Glm5Command
from glm5_ascend.cli_deploy import HOSTS_HELP, PROXY_HELP
from glm5_ascend.env import OP_BACKENDS


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
    /models/MODEL-QUANT without it. Flags of vLLM belong into the plan then. The first prefill server
    also starts the proxy, once every instance answers.

    \b
    Examples:
      glm5-ascend serve GLM-5.2-w4a8 --port 8000 --max-model-len 4096
      glm5-ascend serve --plan plan.yaml --node-rank 1 --hosts 10.0.0.1,10.0.0.2 --nic eth0
    """
    if part["plan"] is not None:
        return _serve_part(model, vllm_args, dry_run, op_backend, part)
    if any(part[name] is not None for name in ("hosts", "nic", "proxy_script")):
        raise click.UsageError("--hosts, --nic and --proxy-script go with --plan")
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
    if "--simulate" in (model, *vllm_args):
        raise click.UsageError("--simulate is not offered for plans; --dry-run prints the command")
    if op_backend != "auto":
        raise click.UsageError("--op-backend is for the CPU engine, a plan for NPUs")
    if model is not None and model.startswith("-"):
        vllm_args = (model, *vllm_args)
        model = None
    from glm5_ascend.deploy.render.launch import Part, run

    where = {name: part[name] for name in ("hosts", "nic", "proxy_script")}
    return run(
        Part(part["plan"], int(rank), model, **where, vllm_args=vllm_args), dry_run=dry_run
    )
