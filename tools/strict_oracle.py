"""Ask the real vLLM and vllm-ascend of a chosen release whether they take a checkpoint or command.

``python -m tools.strict_oracle load DIR --for 0.30.0rc2`` builds the model, loads the weights and
prepares them, MTP included. ``python -m tools.strict_oracle command --for 0.23.0.post1 -- vllm
serve …`` runs the real argument parser and every check of the configuration. Both use the Python of
the release from PyPI with stand-ins for the device, on this CPU: no kernel runs, no memory is
measured and no process group spans more than this process. ``load DIR --for vllm==0.32.0`` asks
vLLM alone, as on one NVIDIA GPU.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from glm5_ascend import console
from glm5_ascend.errors import ExitCode, Glm5Error
from tools.oracle.install import CACHE, Engine, Environment, vllm_alone
from tools.oracle.releases import RELEASES, Release, find_release
from tools.oracle.trials import CHIPS, GPUS, Oracle, Record, run_commands
from tools.oracle.words import read_command, resolve_model

_release = click.option(
    "--for", "name", required=True, help="Release of vllm-ascend, such as 0.30.0rc2 or 0.30."
)
_any_release = click.option(
    "--for", "name", required=True, help="Such as 0.30.0rc2 of vllm-ascend, or vllm==0.32.0 alone."
)
_cache = click.option(
    "--cache", type=click.Path(path_type=Path), default=CACHE, help="Folder of the environments."
)
_chip = click.option(
    "--chip", type=click.Choice(CHIPS), default="A3", show_default=True, help="Chip of the image."
)
_timeout = click.option(
    "--timeout", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Seconds."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")


_ALONE = "vllm=="


@click.group(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    pass


@cli.command()
@_release
@_cache
@click.option("--again", is_flag=True, help="Make the environment anew.")
def install(name: str, cache: Path, again: bool) -> None:
    """Fetch the Python of a release into its own environment."""
    environment = _environment(name, cache, again=again)
    console.put(str(environment.folder))


@cli.command()
def releases() -> None:
    """List the releases that the oracle knows."""
    for release in RELEASES:
        console.put(f"{release.version}  vLLM {release.vllm}  transformers {release.transformers}")


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_any_release
@click.option("--mtp/--no-mtp", default=True, show_default=True, help="Load the MTP drafter too.")
@_chip
@_timeout
@_cache
@_json
def load(
    directory: Path, name: str, mtp: bool, chip: str, timeout: float, cache: Path, as_json: bool
) -> None:
    """Load the checkpoint DIRECTORY: build, load_weights, process_weights, MTP."""
    engine: Engine
    if name.startswith(_ALONE):
        engine, chip = vllm_alone(name.removeprefix(_ALONE), cache), GPUS[0]
        about: Record = {"release": None, "vllm": name.removeprefix(_ALONE), "chip": chip}
    else:
        engine = environment = _environment(name, cache)
        about = _about(environment.release, chip)
    console.note(f"loading {directory}")
    with Oracle(engine, "load", chip) as oracle:
        record = oracle.ask({"directory": str(directory.resolve()), "mtp": mtp}, timeout)
    _finish({"checkpoint": str(directory), **about, **record}, as_json)


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
@_release
@click.option("--model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_chip
@_timeout
@_cache
@_json
def command(
    words: tuple[str, ...],
    name: str,
    model: Path | None,
    chip: str,
    timeout: float,
    cache: Path,
    as_json: bool,
) -> None:
    """Check a command: [NAME=VALUE…] vllm serve MODEL …

    A MODEL that is no folder here is replaced by --model, or by the published config, a tokenizer
    and a description that fit its name.
    """
    read = read_command(words)
    environment = _environment(name, cache)
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        resolved, stands = resolve_model(read, Path(folder), model)
        console.note(f"checking the command; model: {stands}")
        asked = [{"argv": resolved.argv, "env": resolved.env}]
        record = next(run_commands(environment, asked, chip, timeout))[1]
    _finish({"model": stands, **_about(environment.release, chip), **record}, as_json)


def _environment(name: str, cache: Path, *, again: bool = False) -> Environment:
    release = find_release(name)
    if release.version != name:
        console.note(f"{name}: taking vllm-ascend {release.version}")
    environment = Environment(release, cache)
    environment.install(again=again)
    return environment


def _about(release: Release, chip: str) -> Record:
    return {"release": release.version, "vllm": release.vllm, "chip": chip}


def _finish(record: Record, as_json: bool) -> None:
    console.emit(record, "\n".join(_lines(record)), as_json=as_json)
    if record["verdict"] != "accepted":
        sys.exit(ExitCode.INPUT)


def _lines(record: Record) -> list[str]:
    engine = f"vllm-ascend {record['release']}" if record["release"] else f"vLLM {record['vllm']}"
    lines = [f"{record['verdict']} by {engine} ({record['chip']})"]
    if record.get("exception"):
        lines.append(f"  in {record['stage']}: {record['exception']}: {record['message']}")
        lines.append(f"  at {record['where'] or 'no frame of vLLM'}")
    elif record.get("message"):
        lines.append(f"  {record['message']}")
    for key in ("uninitialised", "cast", "overwritten", "unread"):
        lines += [f"  {key}: {text}" for text in record.get(key, [])]
    lines += [f"  {count} x {method}" for method, count in record.get("methods", {}).items()]
    return lines + [f"  warning: {text}" for text in record.get("warnings", [])]


def main() -> None:
    """Run the command line; expected failures become ``error:`` and ``hint:`` lines."""
    try:
        cli()
    except Glm5Error as error:
        console.report(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
