"""Commands of deployment: parse, import the work of one command, run it, print its result."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from glm5_ascend import console
from glm5_ascend.cli_base import DIRECTORY, Count, Finite, Glm5Command
from glm5_ascend.errors import ExitCode

_QUANTS = click.Choice(["bf16", "w8a8", "w4a8"])
_CACHES = click.Choice(["bf16", "li-c8", "sfa-c8", "both"])
_COUNT = Count(1)
_SHARE = Finite(0, 1, max_open=True)
_MILLISECONDS = Finite(0, min_open=True)
_HW_HELP = "SKU:SERVERS, e.g. a3-752t:2; a bare a2 or a3 is its slowest SKU."
HOSTS_HELP = "IPv4 address of each node, in the plan's order."
PROXY_HELP = "vllm-ascend's proxy.  [default: where its images have it]"
_KV_HELP = "Cache: li-c8 int8 indexer keys, sfa-c8 int8 latent, both."


@click.command(cls=Glm5Command, short_help="Say whether a layout fits in memory.")
@click.option("--model", required=True, metavar="NAME|DIR", help="glm-5 to glm-5.3, or a folder.")
@click.option("--quant", type=_QUANTS, default="w8a8", show_default=True, help="Weights.")
@click.option("--kv", type=_CACHES, default="bf16", show_default=True, help=_KV_HELP)
@click.option("--hw", required=True, metavar="SKU[:SERVERS]", help=_HW_HELP)
@click.option("--layout", required=True, help="dp8tp4, dp1tp16dcp16, or p=dp4tp8,d=dp32tp1.")
@click.option("--max-model-len", type=_COUNT, help="Longest request; the model's by default.")
@click.option("--max-num-seqs", type=_COUNT, help="Sequences per DP rank.  [default: 16]")
@click.option(
    "--max-num-batched-tokens",
    type=_COUNT,
    help="Per DP rank.  [default: 4096; prefill 8192; decode what its sequences need]",
)
@click.option(
    "--gpu-memory-utilization",
    "utilisation",
    type=Finite(0, 1, min_open=True),
    default=0.92,
    show_default=True,
    help="Share of a die that the engine may take.",
)
@click.option(
    "--mtp", "draft_tokens", type=click.IntRange(0, 8), default=3, show_default=True, help="Drafts."
)
@click.option("--dsa-cp", is_flag=True, help="DSA context parallel on mixed and prefill nodes.")
@click.option("--kv-both", is_flag=True, help="The node has a connector of role kv_both.")
@click.option("--keep-unfused", is_flag=True, help="mlapo_keep_prefill_weights is on.")
@click.option("--redundant", type=Count(0), default=0, help="Redundant experts of EPLB.")
@click.option("--hccl-buffsize", "buffsize", type=_COUNT, help="MiB.  [default: what is needed]")
@click.option("--eager", is_flag=True, help="No captured graphs.")
@click.option(
    "--kv-gib",
    type=Finite(0, 65536, min_open=True),
    help="GiB of cache that a log reports, in place of ours.",
)
@click.option("--for", "release", default="0.30", show_default=True, help="vllm-ascend's version.")
@click.option("--json", "as_json", is_flag=True, help="Print the bills as JSON.")
def fit(as_json: bool, **options: Any) -> int:
    """Say what takes the memory of a die, what context fits, and the nearest change that does.

    Everything printed is modelled; deploy/README.md has the formulas and the logs they were checked
    on. Exit code 3 says that it does not fit.

    \b
    Example:
      glm5-ascend fit --model glm-5.1 --quant w8a8 --hw a2-313t:2 --layout dp2tp8
    """
    from glm5_ascend.deploy.memory.command import FitOptions
    from glm5_ascend.deploy.memory.command import fit as run

    found = run(FitOptions(**options))
    console.emit(found.as_dict(), found.as_text(), as_json=as_json)
    return int(found.exit_code)


@click.command(cls=Glm5Command, short_help="Find the layout that is best for a load.")
@click.option("--model", required=True, metavar="NAME|DIR", help="glm-5 to glm-5.3, or a folder.")
@click.option("--quant", type=_QUANTS, default="w8a8", show_default=True, help="Weights.")
@click.option("--kv", type=_CACHES, help="One cache format.  [default: try all]")
@click.option("--hw", required=True, metavar="SKU[:SERVERS]", help=_HW_HELP)
@click.option("--isl", type=_COUNT, required=True, help="Tokens of a prompt.")
@click.option("--osl", type=Count(2), required=True, help="Tokens of an answer.")
@click.option("--prefix", type=_SHARE, default=0.0, show_default=True, help="Share found in cache.")
@click.option("--prefix-d", type=_SHARE, help="Share that decodes share.  [default: --prefix]")
@click.option("--concurrency", type=_COUNT, help="Requests at once.")
@click.option("--rate", type=Finite(0, min_open=True), help="Requests per second.")
@click.option("--tpot", type=_MILLISECONDS, default=50.0, show_default=True, help="Mean limit, ms.")
@click.option("--ttft", type=_MILLISECONDS, default=5e3, show_default=True, help="Mean limit, ms.")
@click.option(
    "--accept-len",
    "accepted",
    type=Finite(1, 4),
    default=2.8,
    show_default=True,
    help="Tokens per step with three drafts.",
)
@click.option("--mtp", "drafts", type=click.IntRange(0, 8), help="Drafts.  [default: try some]")
@click.option("--index-cache/--no-index-cache", default=True, help="IndexCache on GLM-5 and 5.1.")
@click.option("--for", "release", default="0.30", show_default=True, help="vllm-ascend's version.")
@click.option("--top", type=_COUNT, default=5, show_default=True, help="Layouts to show.")
@click.option("--out", type=DIRECTORY, metavar="FILE", help="Write the best as a plan file.")
@click.option("--chart", type=DIRECTORY, metavar="FILE", help="Write the chart as HTML with SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def plan(as_json: bool, **options: Any) -> int:
    """Try every layout on the hardware and rank those that meet the limits by tokens/s per die.

    Everything printed is modelled unless it says published; deploy/README.md shows how far the
    model is off on published measurements. Exit code 4 says that no layout meets the limits.

    \b
    Example:
      glm5-ascend plan --model glm-5.2 --hw a3-752t:4 --isl 65536 --osl 1024 --prefix 0.9 \\
        --concurrency 128 --out plan.yaml
    """
    if (options["concurrency"] is None) == (options["rate"] is None):
        raise click.UsageError("give either --concurrency or --rate")
    source = click.get_current_context().get_parameter_source("accepted")
    if options["drafts"] == 0 and source is not ParameterSource.DEFAULT:
        raise click.UsageError("--accept-len is of drafts, and --mtp 0 makes none")
    from glm5_ascend.deploy.planner.command import PlanOptions
    from glm5_ascend.deploy.planner.command import plan as run

    planned = run(PlanOptions(**options))
    console.emit(planned.as_dict(), planned.as_text(), as_json=as_json)
    if planned.trouble is not None:
        console.report_lines(*planned.trouble)
    return int(planned.exit_code)


@click.command(cls=Glm5Command, short_help="Write what every server of a plan runs.")
@click.argument("plan", metavar="PLAN", type=DIRECTORY)
@click.option(
    "--format",
    type=click.Choice(["bash", "docker", "compose", "k8s", "ci", "plan"]),
    default="bash",
    show_default=True,
    help="Scripts, docker run, compose files, LeaderWorkerSet, vllm-ascend's CI file, or a plan.",
)
@click.option("--out", type=DIRECTORY, metavar="DIR", help="Folder to write to.")
@click.option("--checkpoint", metavar="DIR", help="On the servers.  [default: /models/MODEL-QUANT]")
@click.option("--hosts", metavar="IP,IP", help=HOSTS_HELP)
@click.option("--nic", metavar="NAME", help="Interface of these addresses.")
@click.option("--port", type=_COUNT, default=8000, show_default=True, help="Of the endpoint.")
@click.option("--name", metavar="NAME", help="Served model name.  [default: the model's]")
@click.option("--proxy-script", metavar="FILE", help=PROXY_HELP)
@click.option("--external-dp", is_flag=True, help="Scripts: a server per data-parallel rank.")
@click.option(
    "--scheduler",
    type=click.Choice(["default", "volcano", "mindcluster"]),
    default="default",
    show_default=True,
    help="Of Kubernetes: gangs, and MindCluster's labels.",
)
@click.option("--queue", default="default", show_default=True, help="Of Volcano.")
@click.option("--npu-resource", metavar="NAME", help="Of Kubernetes.  [default: MindCluster's]")
@click.option("--for", "release", help="vllm-ascend's version, for a CI file.  [default: 0.30]")
@click.option("--hw", metavar="SKU", help="For a CI file.  [default: its chip's slowest SKU]")
@click.option("--dry-run", is_flag=True, help="Print the files, write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the list of files as JSON.")
def render(as_json: bool, **options: Any) -> int:
    """Write what every server of a plan runs: variables, vllm serve, and the proxy.

    PLAN is what `plan --out` wrote, or a multi-node CI file of vllm-ascend; what a plan cannot say
    of that is named on stderr. Nothing is started. `check` reads every format but proxy.sh.
    Kubernetes and the CI find the addresses themselves.

    \b
    Example:
      glm5-ascend render plan.yaml --hosts 10.0.0.1,10.0.0.2 --nic eth0 --out scripts
    """
    from glm5_ascend.deploy.render.command import RenderOptions
    from glm5_ascend.deploy.render.command import render as run

    if options["out"] is None and not options["dry_run"]:
        raise click.UsageError("give --out DIR, or --dry-run")
    rendered = run(RenderOptions(**options))
    for text in rendered.lost:
        console.note(f"not kept: {text}")
    for text in rendered.unused:
        console.note(f"warning: {text}")
    console.emit(rendered.as_dict(), rendered.as_text(), as_json=as_json)
    return int(ExitCode.DONE)


@click.command(cls=Glm5Command, short_help="Say whether a running endpoint may go into service.")
@click.argument("url", metavar="URL")
@click.option("--model", metavar="NAME", help="Served model name.  [default: the first]")
@click.option("--plan", type=DIRECTORY, metavar="FILE", help="Plan whose predictions are limits.")
@click.option("--ttft", type=_MILLISECONDS, help="Mean limit, ms.  [default: the plan's, or 10000]")
@click.option("--tpot", type=_MILLISECONDS, help="Mean limit, ms.  [default: the plan's, or 200]")
@click.option(
    "--timeout",
    type=Finite(0, 86_400, min_open=True),
    default=120.0,
    show_default=True,
    help="Longest silence, s.",
)
@click.option("--api-key-file", type=DIRECTORY, metavar="FILE", help="File that holds the key.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def accept(as_json: bool, **options: Any) -> int:
    """Put questions with known answers to an endpoint, a tool call, and four streams at once.

    Finds answers that are wrong, garbled (`!!!!`) or repeat themselves, streams that are slow or
    buffered, and drafts that are not accepted. The plan's figures are limits with 25 % on top. Exit
    code 0 says go, 1 no-go, 6 that the server failed or does not answer. Ctrl-C prints what is
    known so far.

    An endpoint of `serve --plan --simulate` is asked what its small model knows; its speed is not
    compared with the plan's.

    \b
    Example:
      glm5-ascend accept http://10.0.0.1:8000 --plan plan.yaml
    """
    from glm5_ascend.deploy.accept.command import AcceptOptions
    from glm5_ascend.deploy.accept.command import accept as run

    found = run(AcceptOptions(**options))
    console.emit(found.as_dict(), found.as_text(), as_json=as_json)
    return int(found.exit_code)


COMMANDS: list[click.Command] = [fit, plan, render, accept]
