"""Commands of deployment: parse, import the work of one command, run it, print its result."""

from __future__ import annotations

from typing import Any

import click

from glm5_ascend import console
from glm5_ascend.cli_base import Glm5Command

_QUANTS = click.Choice(["bf16", "w8a8", "w4a8"])
_CACHES = click.Choice(["bf16", "li-c8", "sfa-c8", "both"])
_COUNT = click.IntRange(1)
_HW_HELP = "SKU:SERVERS, e.g. a3-752t:2; a bare a2 or a3 is its slowest SKU."
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
    type=click.FloatRange(0, 1, min_open=True),
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
@click.option("--redundant", type=click.IntRange(0), default=0, help="Redundant experts of EPLB.")
@click.option("--hccl-buffsize", "buffsize", type=_COUNT, help="MiB.  [default: what is needed]")
@click.option("--eager", is_flag=True, help="No captured graphs.")
@click.option("--kv-gib", type=float, help="GiB of cache that a log reports, in place of ours.")
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


COMMANDS: list[click.Command] = [fit]
