"""``check`` and ``doctor``: parse, import the work of one command, run it, print its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from glm5_ascend import console
from glm5_ascend.cli_base import DIRECTORY, Glm5Command, PathType
from glm5_ascend.files import refuse_inputs, refuse_unwritable

_FILE = PathType(path_type=Path, dir_okay=False, readable=False)


@click.command(cls=Glm5Command, short_help="Say whether a serve command is right for a release.")
@click.argument(
    "files", nargs=-1, metavar="[FILE|-]...", type=PathType(readable=False, allow_dash=True)
)
@click.option(
    "--for",
    "engine",
    required=True,
    metavar="VERSION",
    help="Release: vllm-ascend==0.30.0rc2, or 0.30 for the newest of a series.",
)
@click.option("--hw", metavar="SKU[:SERVERS]", help="Servers: a2:1, a3-752t:4; sharpens rules.")
@click.option("--model", type=DIRECTORY, help="Folder of the checkpoint; its headers are read.")
@click.option("--pid", "pids", type=click.IntRange(1), multiple=True, help="A running server.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option("--fix", is_flag=True, help="Print the repaired commands.")
@click.option("--in-place", is_flag=True, help="Repair the files; old ones stay as .bak, .bak1 …")
@click.option("--sarif", type=_FILE, help="Write the findings as SARIF.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(
    files: tuple[str, ...], pids: tuple[int, ...], sarif: Path | None, as_json: bool, **options: Any
) -> int:
    """Check `vllm serve` commands against one release of vllm-ascend.

    FILE is a command line, a shell script, docker run, a compose file, a vllm-ascend CI YAML or a
    Kubernetes manifest; - is standard input. Several files are one deployment. Nothing is started.
    What cannot be repaired by --fix stays and is reported on stderr.

    \b
    Example:
      glm5-ascend check serve.sh --for vllm-ascend==0.30.0rc2 --hw a3:2
    """
    if not files and not pids:
        raise click.UsageError("give a FILE, - for standard input, or --pid")
    if sarif is not None:
        refuse_unwritable(sarif)
        refuse_inputs([sarif], *(Path(name) for name in files if name != "-"))
    from glm5_ascend.deploy.check.run import Options, run, text_of, write_sarif

    report = run(Options(files=files, pids=pids, **options))
    if sarif is not None:
        write_sarif(report, sarif)
    console.emit(report.as_dict(), report.as_text(), as_json=as_json)
    for backup in report.backups:
        console.note(f"kept {backup}")
    if report.fixed and not as_json and report.remaining:
        for line in text_of(report.remaining, report.commands, report.release.text).splitlines():
            console.note(f"left: {line}")
    return int(report.exit_code)


@click.command(cls=Glm5Command, short_help="Say whether machines are ready, or why a run failed.")
@click.option("--nodes", metavar="U@H1,H2|@FILE", help="Machines to ask through ssh.")
@click.option("--for", "engine", metavar="VERSION", help="Release whose versions are wanted.")
@click.option("--model", metavar="DIR", help="Checkpoint that must be the same on all machines.")
@click.option("--port", "ports", type=click.IntRange(1, 65535), multiple=True, help="Must be free.")
@click.option("--log", type=_FILE, help="Name the cause of a failed run from its log instead.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def doctor(log: Path | None, as_json: bool, nodes: str | None, **options: Any) -> int:
    """Ask this machine, or several through ssh, what an engine needs to know before it starts.

    Nothing is changed anywhere. What cannot be asked (no NPU, no hccn_tool) is reported as skipped.
    Exit code 5 says that a check failed; with --log 1 says that a known cause was found.

    \b
    Examples:
      glm5-ascend doctor --nodes root@10.0.0.1,10.0.0.2 --for 0.30 --model /models/GLM-5.2-w4a8
      glm5-ascend doctor --log vllm.log
    """
    others = [nodes, *options.values()]
    if log is not None and any(value not in (None, ()) for value in others):
        raise click.UsageError("--log asks no machine: it goes with --json alone")
    if options["engine"] == "" or options["model"] == "":
        raise click.UsageError("--for and --model want a value")
    from glm5_ascend.deploy.doctor.run import diagnose, diagnose_log

    found = diagnose_log(log) if log is not None else diagnose(nodes, **options)
    console.emit(found.as_dict(), found.as_text(), as_json=as_json)
    return int(found.exit_code)
