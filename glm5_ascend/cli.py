"""The command line: parse, import the work of one command, run it, print its result.

Nothing heavy is imported here, so that ``--help`` and ``--version`` are immediate.
"""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click

from glm5_ascend import __version__, console
from glm5_ascend.cli_base import DIRECTORY, Finite, Glm5Group
from glm5_ascend.cli_check import check, doctor
from glm5_ascend.cli_deploy import accept, fit, plan, render
from glm5_ascend.cli_endpoint import bundle, endpoint
from glm5_ascend.cli_eval import evaluate
from glm5_ascend.cli_quant import quantize
from glm5_ascend.cli_sensitivity import sensitivity
from glm5_ascend.cli_serve import serve
from glm5_ascend.cli_verify import inspect, repair, verify_checkpoint
from glm5_ascend.env import OP_BACKENDS
from glm5_ascend.errors import ExitCode, PreflightError
from glm5_ascend.exit_codes import help_epilog
from glm5_ascend.streams import guard_standard_streams


def _require(command: str, **extras: str) -> None:
    """Refuse to start without a package; each is named with the extra that installs it."""
    for package, extra in extras.items():
        if find_spec(package) is None:
            raise PreflightError(
                f"{command} needs {package}, which is not installed",
                f"pip install 'glm5-ascend[{extra}]'",
            )


@click.group(
    cls=Glm5Group,
    epilog=help_epilog(),
    no_args_is_help=False,
    context_settings={"max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, prog_name="glm5-ascend")
def cli() -> None:
    """Quantise, inspect and serve GLM-5 for Ascend NPUs; without one, on this CPU."""


cli.add_command(quantize)
cli.add_command(sensitivity)
cli.add_command(evaluate)
cli.add_command(check)
cli.add_command(doctor)
cli.add_command(fit)
cli.add_command(plan)
cli.add_command(render)
cli.add_command(accept)
cli.add_command(endpoint)
cli.add_command(bundle)


cli.add_command(inspect)
cli.add_command(verify_checkpoint)
cli.add_command(repair)
cli.add_command(serve)


@cli.command(short_help="Write an operator or a decoder layer as ONNX.")
@click.argument(
    "what", type=click.Choice(["lightning_indexer", "sparse_flash_attention", "mlapo", "layer"])
)
@click.option("-o", "--output", type=DIRECTORY, required=True, help="File to write.")
@click.option(
    "--model",
    type=DIRECTORY,
    help="Checkpoint: of the layer, or whose sizes an operator takes (GLM-5's without it).",
)
@click.option("--layer", type=int, help="Index of the layer.")
@click.option(
    "--layout",
    type=click.Choice(["BSND", "PA_BSND"]),
    help="Indexer and attention: padded batches (default), or packed queries and paged caches.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Operators: type of the float inputs and outputs, float32 by default.",
)
@click.option(
    "--weights",
    type=click.Choice(["float", "w8a8", "w8a8-dynamic"]),
    help="mlapo: scheme of the weights, float by default.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def export(as_json: bool, **options: Any) -> None:
    """Write an operator, or one decoder layer with its weights, as ONNX.

    The operators are functions of domain glm5.ascend with standard operators inside, so that any
    runtime computes them, and one with a kernel of its own can put it in their place. Caches are
    inputs and outputs. Weights of more than 2 GB go to a second file beside the first.

    \b
    Example:
      glm5-ascend export layer --model GLM-5.2-w8a8 --layer 3 -o layer3.onnx
    """
    _require("export", torch="cpu", onnx="onnx")
    from glm5_ascend.ops.onnx.command import run
    from glm5_ascend.ops.onnx.options import options_of

    summary = run(options_of(**options))
    console.emit(summary.as_dict(), summary.as_text(), as_json=as_json)


@cli.group(
    "ops",
    cls=Glm5Group,
    invoke_without_command=True,
    short_help="List the operators and their backends.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@click.pass_context
def ops_group(context: click.Context, as_json: bool) -> None:
    """List the fused operators, which backends can run them here, and why others cannot.

    \b
    Example:
      glm5-ascend ops
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"put --json behind {context.invoked_subcommand}")
        return
    _require("ops", torch="cpu")
    from glm5_ascend.ops.table import table

    result = table()
    console.emit(result.as_dict(), result.as_text(), as_json=as_json)


@ops_group.command(short_help="Check the operators' backends on this machine.")
@click.option(
    "--backend",
    "backends",
    type=click.Choice(OP_BACKENDS[1:]),
    multiple=True,
    help="Backend to check; repeat for more. Without it, all that can run here.",
)
@click.option("--op", "names", multiple=True, help="Operator to check; repeat for more.")
@click.option("--quick", is_flag=True, help="The most telling cases only.")
@click.option("--full", is_flag=True, help="Tiles of real size too.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def verify(
    backends: tuple[str, ...], names: tuple[str, ...], quick: bool, full: bool, as_json: bool
) -> int:
    """Run the conformance suite: hostile inputs, oracles in F64, derived error budgets.

    The table shows, of all cases of an operator on a backend, the error nearest to its budget, the
    worst cosine difference and the worst share of the right index positions. Exit code 1 if
    anything fails.

    \b
    Example:
      glm5-ascend ops verify --backend cpu --op lightning_indexer
    """
    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    _require("ops verify", torch="cpu")
    from glm5_ascend.ops.verify.command import operators
    from glm5_ascend.ops.verify.command import verify as run

    known = operators()
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"{name!r} is not one of {', '.join(known)}", param_hint="--op"
            )
    size = "quick" if quick else "full" if full else "normal"
    report = run(backends, names, size, quiet=as_json)
    console.emit(report.as_dict(), report.as_text(), as_json=as_json)
    return int(ExitCode.DONE if report.passed else ExitCode.INPUT)


@ops_group.command(short_help="Compile the AscendC kernels for this machine's NPU.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def build(as_json: bool) -> int:
    """Compile the AscendC kernels into the library of backend 'ascendc', unless it is there.

    Wants CANN with its ASC compiler, torch_npu and cmake: run it inside the vllm-ascend image, on
    Atlas A2 or A3. Not tried with CANN yet.

    \b
    Example:
      glm5-ascend ops build
    """
    _require("ops build", torch="cpu")
    from glm5_ascend.ops.ascendc.build import build as run

    built = run()
    console.emit(built.as_dict(), built.as_text(), as_json=as_json)
    return int(ExitCode.DONE)


def _seed(context: click.Context, option: click.Parameter, value: int) -> int:
    """A seed of torch's generators, with some room for those that follow it."""
    if not 0 <= value < 2**63 - 10_000:
        raise click.BadParameter(f"{value} is not within 0 and 2**63 - 10001", context, option)
    return value


@ops_group.command(short_help="Run an AscendC kernel on the emulator and check it.")
@click.argument("target", metavar="KERNEL.toml|OP")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    callback=_seed,
    help="First seed of inputs and scheduler.",
)
@click.option(
    "--seeds",
    default=3,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Runs of the random scheduler.",
)
@click.option(
    "--scheduler",
    default="both",
    show_default=True,
    type=click.Choice(["round-robin", "random", "both"]),
    help="Order in which cores run.",
)
@click.option("--mutants", is_flag=True, help="Drop each synchronisation in turn; all must show.")
@click.option("--sanitize", is_flag=True, help="Check for undefined behaviour of C++ too.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def emulate(target: str, as_json: bool, **options: Any) -> int:
    """Compile an AscendC kernel for the host, run it, compare it, and report hazards.

    KERNEL.toml names the source, its arguments and a Python reference (ops/README.md has a
    tutorial). With the name of an operator, its own kernel runs the conformance suite. Nothing runs
    on an NPU. Exit code 1 on any finding.

    
    Example:
      glm5-ascend ops emulate ops/emulator/examples/scale_add.toml --mutants
    """
    _require("ops emulate", torch="cpu")
    from glm5_ascend.ops.emulator.operators import conformance, is_operator

    if is_operator(target):
        report = conformance(target, quiet=as_json)
        console.emit(report.as_dict(), report.as_text(), as_json=as_json)
        return int(ExitCode.DONE if report.passed else ExitCode.INPUT)
    if not target.endswith(".toml"):
        raise click.BadParameter(
            f"{target!r} is neither a .toml file nor an operator", param_hint="KERNEL.toml|OP"
        )
    from glm5_ascend.ops.emulator.command import emulate as run

    outcome = run(Path(target), **options)
    console.emit(outcome.as_dict(), outcome.as_text(), as_json=as_json)
    return int(ExitCode.DONE if outcome.passed else ExitCode.INPUT)


@ops_group.command(short_help="Model an AscendC kernel's time on a chip.")
@click.argument("operator", metavar="OP")
@click.option("--shape", default="", help="Sizes such as b=1,q=1,s=65536; others by default.")
@click.option(
    "--chip",
    default="910c",
    show_default=True,
    type=click.Choice(["910b2", "910b3", "910b4", "910c"]),
    help="One die of it.",
)
@click.option("--timeline", type=DIRECTORY, help="Draw the pipes over time into this SVG file.")
@click.option(
    "--limit",
    default=120.0,
    show_default=True,
    type=Finite(1),
    help="Seconds of emulation above which smaller shapes stand in.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def cost(
    operator: str, shape: str, chip: str, timeline: Path | None, limit: float, as_json: bool
) -> int:
    """Predict the time of an operator's kernel: per pipe, bound, and distance to the floors.

    The kernel runs on the emulator; its instructions are then replayed at the chip's rates. Nothing
    is measured. ops/emulator/README.md has the model, its sources and what it leaves out.

    \b
    Example:
      glm5-ascend ops cost lightning_indexer --shape b=1,q=1,s=65536 --chip 910c
    """
    _require("ops cost", torch="cpu")
    from glm5_ascend.ops.emulator.cost_command import cost as run

    result = run(operator, shape, chip, timeline, limit)
    console.emit(result.as_dict(), result.as_text(), as_json=as_json)
    return int(ExitCode.DONE)


@cli.command(short_help="Show quantising and serving on the small model.")
@click.option("--keep", type=DIRECTORY, help="Keep the quantised checkpoints in this directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def demo(keep: Path | None, as_json: bool) -> int:
    """Quantise, serve and compare the small model that ships with the package."""
    from glm5_ascend.demo import run

    return run(keep=keep, json=as_json) or 0


def main() -> NoReturn:
    """Entry point of the ``glm5-ascend`` script."""
    guard_standard_streams()
    cli.owns_process = True
    try:
        cli.main(prog_name="glm5-ascend")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
