"""The command ``sensitivity``."""

from __future__ import annotations

from typing import Any

import click

from glm5_ascend import console
from glm5_ascend.cli_base import DIRECTORY, Glm5Command
from glm5_ascend.cli_quant import Size


@click.command(cls=Glm5Command, short_help="Find the modules that deserve more bits.")
@click.argument("source", metavar="SRC", type=DIRECTORY)
@click.option("--budget", type=Size(), required=True, help="Bytes to add, such as 5GB.")
@click.option("--out", metavar="FILE", type=DIRECTORY, help="Recipe to write for quantize.")
@click.option(
    "--scheme",
    type=click.Choice(["w4a8", "w8a8", "w4a8c8", "w8a8c8"]),
    default="w4a8",
    help="Preset to begin with.",
)
@click.option(
    "--calibration", "text", metavar="TEXT", default="default", help="'default' or a file."
)
@click.option(
    "--calibration-tokens", "tokens", type=click.IntRange(min=16), default=4096, help="Budget."
)
@click.option(
    "--kl", "with_kl", is_flag=True, help="Measure KL at the model's end too: for small models."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def sensitivity(as_json: bool, **options: Any) -> None:
    """Measure what each group of modules of SRC loses in each scheme, and spend a budget on it.

    The recipe written to --out is the preset with the modules kept in int8 or float that lower the
    error most per byte added; give it to quantize --recipe.

    \b
    Example:
      glm5-ascend sensitivity GLM-5.2 --budget 5GB --out recipe.yaml
    """
    from glm5_ascend.quant.calibration.sensitivity_command import SensitivityOptions, run

    result = run(SensitivityOptions(**options))
    console.emit(result.as_dict(), result.as_text(), as_json=as_json)
