"""The command ``quantize``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import click

from glm5_ascend import console
from glm5_ascend.cli_base import DIRECTORY, Glm5Command
from glm5_ascend.errors import ConfigError, ExitCode


class QuantizeCommand(Glm5Command):
    """Shows the presets below the options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list of presets, each with when to use it."""
        from glm5_ascend.quant.recipe_file import preset, preset_names

        with formatter.section("Presets"):
            formatter.write_dl([(name, preset(name).use_when) for name in preset_names()])


class _Preset(click.ParamType[str]):
    name = "preset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a name that is no preset; the message names the nearest."""
        from glm5_ascend.quant.recipe_file import preset

        try:
            preset(str(value))
        except ConfigError as error:
            self.fail(f"{error.message}; {error.hint}", param, ctx)
        return str(value)


class Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Bytes of a number with a decimal or binary unit."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]i?)?B?", str(value))
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
        if size <= 0:
            self.fail(f"{value!r} is no size such as 500MB, 4GB or 4GiB", param, ctx)
        return size


_UNITS = {None: 1} | {
    f"{letter}{binary}": (1024 if binary else 1000) ** power
    for power, letter in enumerate("kMGT", start=1)
    for binary in ("", "i")
}


def _list_presets(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from glm5_ascend.quant.recipe_file import preset, preset_names

    width = max(map(len, preset_names()))
    console.put("\n".join(f"{name:<{width}}  {preset(name).use_when}" for name in preset_names()))
    ctx.exit(int(ExitCode.DONE))


@click.command(cls=QuantizeCommand, short_help="Quantise a checkpoint for vllm-ascend.")
@click.argument("source", metavar="SRC", type=DIRECTORY)
@click.argument("destination", metavar="DST", type=DIRECTORY)
@click.option("--scheme", type=_Preset(), help="Preset, see below.")
@click.option("--recipe", metavar="FILE", type=DIRECTORY, help="YAML file in place of a preset.")
@click.option(
    "--list-presets",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_presets,
    help="Print the presets and when to use each.",
)
@click.option(
    "--format",
    type=click.Choice(["ascend", "compressed-tensors"]),
    help="Of the files: for vllm-ascend, or for vLLM on other devices.",
)
@click.option(
    "--for",
    "engine",
    metavar="ENGINE",
    help="Such as vllm-ascend==0.30: refuse what this release cannot load.",
)
@click.option(
    "--rotate/--no-rotate", default=None, help="Fuse norms and rotate (QuaRot), or do not."
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32"]),
    help="Type of the tensors that stay float.",
)
@click.option(
    "--mtp",
    type=click.Choice(["w8", "float", "rules"]),
    help="The MTP layer, which drafts tokens: int8, float, or as the recipe's rules say.",
)
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, help="Processes that share the work."
)
@click.option(
    "--backend",
    type=click.Choice(["cpu", "reference"]),
    help="Arithmetic: compiled kernels, or torch in float64 (slower).  [default: cpu]",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda", "npu"]),
    default="cpu",
    help="Run the reference there; a device's bytes may differ in the last bit.",
)
@click.option(
    "--calibration",
    metavar="TEXT",
    help="'default' or a file (text or JSONL): int4 modules by GPTQ, in w8a8 all of them.",
)
@click.option(
    "--calibration-tokens", type=click.IntRange(min=16), help="Budget; recipes have 262144."
)
@click.option("--work-dir", type=DIRECTORY, help="For a calibration's activations, tens of GB.")
@click.option(
    "--propagate",
    type=click.Choice(["quantised", "float"]),
    default="quantised",
    help="What a calibration's next layer sees: outputs of the rounded or of the float layer.",
)
@click.option(
    "--min-expert-tokens",
    type=click.IntRange(min=1),
    default=64,
    help="Experts with fewer calibration tokens are rounded from their weights alone.",
)
@click.option(
    "--numa", is_flag=True, help="Pin the workers to NUMA nodes, round-robin, and say so."
)
@click.option(
    "--shard-size",
    "shard_bytes",
    metavar="SIZE",
    type=Size(),
    help="Limit of one file, such as 2GB or 2GiB.  [default: 4GiB, less for small models]",
)
@click.option(
    "--delete-source",
    is_flag=True,
    help="Delete each file of SRC once every output made from it is on disk and checked.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted run into DST.")
@click.option("--overwrite", is_flag=True, help="Replace what DST holds.")
@click.option(
    "--hash-source", is_flag=True, help="Put the SHA-256 of each file of SRC into the manifest."
)
@click.option("--dry-run", is_flag=True, help="Print plan, sizes, time, memory and disk only.")
@click.option(
    "--rate",
    "rates",
    metavar="NAME=VALUE",
    multiple=True,
    help="With --dry-run: weights/s of int4, int8 or float, bytes/s of hash, read or write.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def quantize(
    scheme: str | None,
    recipe: Path | None,
    engine: str | None,
    backend: Literal["cpu", "reference"] | None,
    device: Literal["cpu", "cuda", "npu"],
    as_json: bool,
    dry_run: bool,
    rates: tuple[str, ...],
    calibration: str | None,
    calibration_tokens: int | None,
    work_dir: Path | None,
    propagate: Literal["quantised", "float"],
    min_expert_tokens: int,
    **options: Any,
) -> int:
    """Quantise the checkpoint SRC into the new directory DST, in the format of vllm-ascend.

    What a recipe leaves open, and every preset, rotates, keeps bfloat16 and has the MTP layer in
    int8; --rotate, --dtype and --mtp say otherwise.

    \b
    Example:
      glm5-ascend quantize GLM-5.2 GLM-5.2-w4a8 --scheme w4a8 --for vllm-ascend==0.30
    """
    if options["resume"] and options["overwrite"]:
        raise click.UsageError("--resume and --overwrite exclude each other")
    if options["numa"] and options["workers"] == 1:
        raise click.UsageError("--numa goes with --workers 2 or more")
    if rates and not dry_run:
        raise click.UsageError("--rate goes with --dry-run")
    if (scheme is None) == (recipe is None):
        raise click.UsageError("give one of --scheme and --recipe")
    from glm5_ascend.engine_releases import find_release
    from glm5_ascend.quant.backend import chosen
    from glm5_ascend.quant.calibration.options import CalibrationOptions, Setting
    from glm5_ascend.quant.command import QuantizeOptions, run

    setting = Setting(propagate, min_expert_tokens)
    wanted = QuantizeOptions(
        calibration=CalibrationOptions(calibration, calibration_tokens, work_dir, setting),
        **options,
        scheme=scheme or "",
        recipe=recipe,
        release=None if engine is None else find_release(engine),
        backend=chosen(backend, device),
    )
    if dry_run:
        from glm5_ascend.quant import dry_run as model

        planned = model.run(wanted, _rates(rates, model.RATES))
        console.emit(planned.as_dict(), planned.as_text(), as_json=as_json)
        return int(planned.exit_code)
    summary = run(wanted)
    console.emit(summary.as_dict(), summary.as_text(), as_json=as_json)
    return int(ExitCode.DONE)


def _rates(words: tuple[str, ...], known: tuple[str, ...]) -> dict[str, float]:
    """``NAME=VALUE`` pairs; a usage error for an unknown name or a value that is not positive."""
    rates: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            rates[name] = float(text)
        except ValueError:
            rates[name] = 0.0
        if name not in known or not 0 < rates[name] < float("inf"):
            raise click.BadParameter(
                f"{word!r} is not NAME=VALUE with one of {', '.join(known)}", param_hint="--rate"
            )
    return rates
