"""The command ``eval``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from glm5_ascend import console
from glm5_ascend.cli_base import DIRECTORY, Finite, Glm5Command
from glm5_ascend.errors import PreflightError


@click.command("eval", cls=Glm5Command, short_help="Measure what quantisation cost a checkpoint.")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option(
    "--against",
    metavar="SRC",
    required=True,
    type=DIRECTORY,
    help="The checkpoint that DIR was made from: BF16, F32 or FP8.",
)
@click.option("--text", type=DIRECTORY, help="UTF-8 file; parts of Python's library without it.")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    help="At least so many tokens of it.  [default: 32768, or all]",
)
@click.option("--html", type=DIRECTORY, help="Write a report with plots into this file.")
@click.option("--overwrite", is_flag=True, help="Replace that file.")
@click.option(
    "--max-kl", type=Finite(min=0), metavar="NATS", help="Exit with 1 above this mean KL."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def evaluate(directory: Path, as_json: bool, **options: Any) -> int:
    """Measure DIR against SRC on held-out text, through the arithmetic of the quantised model.

    Bits per byte, KL with its tail, top-1, positions and experts chosen, drafts accepted, and the
    error of every layer and matrix. One layer of each is in memory at a time, so that the full
    model can be evaluated, for hours. Exit code 1 if DIR is garbled or above --max-kl.

    \b
    Example:
      glm5-ascend eval GLM-5.2-w4a8 --against GLM-5.2 --html report.html
    """
    for package in ("torch", "tokenizers"):
        if find_spec(package) is None:
            raise PreflightError(
                f"eval needs {package}, which is not installed", "pip install 'glm5-ascend[cpu]'"
            )
    from glm5_ascend.quant.evaluation.command import EvalOptions, run

    report = run(EvalOptions(directory, **options))
    console.emit(report.as_dict(), report.as_text(), as_json=as_json)
    return int(report.exit_code)
