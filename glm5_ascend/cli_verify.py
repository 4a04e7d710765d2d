"""The commands ``inspect``, ``verify`` and ``repair``: what a folder is, and whether it loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from glm5_ascend import console
from glm5_ascend.cli_base import DIRECTORY, Glm5Command


@click.command(cls=Glm5Command, short_help="Say what a checkpoint is.")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def inspect(directory: Path, as_json: bool) -> None:
    """Say what the checkpoint in DIR is: family, sizes, schemes, cache bytes per token.

    \b
    Example:
      glm5-ascend inspect GLM-5.2-w4a8 --json
    """
    from glm5_ascend.inspection import inspect_checkpoint

    result = inspect_checkpoint(directory)
    console.emit(result.as_dict(), result.as_text(), as_json=as_json)


@click.command(
    "verify",
    cls=Glm5Command,
    short_help="Check that an engine will load a checkpoint, and what it holds.",
)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option(
    "--source", type=DIRECTORY, help="Checkpoint that DIR was made from; compare with it."
)
@click.option(
    "--for",
    "engine",
    metavar="ENGINE",
    help="Such as vllm-ascend==0.30, or sglang; all releases of vllm-ascend without it.",
)
@click.option("--manifest", is_flag=True, help="Compare every file with the manifest's SHA-256.")
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="Read the values of N weights."
)
@click.option("--full", is_flag=True, help="Read the values of all weights.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def verify_checkpoint(
    engine: str | None, sample: int | None, full: bool, as_json: bool, **options: Any
) -> int:
    """Check the checkpoint in DIR, made by this or another tool, for vllm-ascend.

    The engine leaves what it does not find uninitialised and says nothing. This looks at names,
    shapes, dtypes, description, index and configuration; with --sample, --full or --source also at
    the numbers, and with --source it measures the error of each weight. ENGINE is a release or a
    series, of which the newest known release is taken; sglang judges by what its documentation
    lists for --quantization modelslim. Exit code 1 if there is an error.

    \b
    Example:
      glm5-ascend verify GLM-5.2-w4a8 --for vllm-ascend==0.30
      glm5-ascend verify GLM-5.2-w4a8 --source GLM-5.2 --sample 500
    """
    if full and sample is not None:
        raise click.UsageError("--full and --sample exclude each other")
    from glm5_ascend.engine_releases import find_release
    from glm5_ascend.quant.verify import VerifyOptions, run

    sglang = engine == "sglang"
    release = None if engine is None or sglang else find_release(engine)
    wanted = VerifyOptions(release=release, sample=sample, full=full, sglang=sglang, **options)
    report = run(wanted)
    console.emit(report.as_dict(), report.as_text(), as_json=as_json)
    return int(report.exit_code)


@click.command(cls=Glm5Command, short_help="Make a checkpoint load without quantising it again.")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--for", "engine", metavar="ENGINE", help="The engine, such as vllm-ascend==0.30.")
@click.option("--source", type=DIRECTORY, help="Checkpoint that DIR was made from.")
@click.option("--dry-run", is_flag=True, help="Print the plan and touch nothing.")
@click.option("--undo", is_flag=True, help="Put back what earlier repairs changed.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def repair(
    directory: Path,
    engine: str | None,
    source: Path | None,
    dry_run: bool,
    undo: bool,
    as_json: bool,
) -> int:
    """Mend what `verify` finds in DIR, as far as the rest of DIR tells what belongs there.

    Keys and entries of the description, traps of config.json, stale indexes, embedding and head of
    the MTP layer, scale_bias, parts of static linears; with --source also rot.weight, a rotated
    head and a whole MTP layer in float. If anything cannot be mended nothing is touched. The
    originals stay in DIR/repair_backup until --undo puts them back; a killed repair is continued by
    the same command.

    \b
    Example:
      glm5-ascend repair GLM-5-w4a8 --for vllm-ascend==0.23 --dry-run
    """
    if undo and (dry_run or engine is not None or source is not None):
        raise click.UsageError("--undo takes no other option")
    if not undo and engine is None:
        raise click.UsageError("missing option --for")
    from glm5_ascend.engine_releases import find_release
    from glm5_ascend.quant.repair import RepairOptions, run

    release = None if engine is None else find_release(engine)
    report = run(RepairOptions(directory, release, source, dry_run, undo))
    console.emit(report.as_dict(), report.as_text(), as_json=as_json)
    return int(report.exit_code)
