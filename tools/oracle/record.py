"""Record verdicts as data: ``python -m tools.oracle.record KIND``.

``checkpoints`` damages tiny checkpoints of ours in every known way and loads them;
``commands`` puts the corpus of ``tools/oracle/commands.toml`` to the real parser;
``recipes`` does the same with the commands in vllm-ascend's own pages, ``fixes`` with what
``glm5-ascend check --fix`` makes of wrong ones, ``plans`` with every node of the plans of
``tools/oracle/plans.toml``. Each replaces its file of JSON lines for the releases that were named,
and keeps the rows of others.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from glm5_ascend import console
from glm5_ascend.errors import Glm5Error
from tools.oracle.corpus import corpus
from tools.oracle.fixes import fixes
from tools.oracle.install import Environment
from tools.oracle.mutations import MUTATIONS, MUTATIONS_51
from tools.oracle.plans import plan_all_anew, plans
from tools.oracle.recipes import recipes
from tools.oracle.releases import find_release
from tools.oracle.sample import write_sample
from tools.oracle.trials import Oracle, Record, run_commands
from tools.oracle.words import resolve_model

_ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = _ROOT / "tests" / "data" / "oracle" / "checkpoints.jsonl"
COMMANDS = _ROOT / "tools" / "results" / "strict_oracle_commands.jsonl"
RECIPES = _ROOT / "tools" / "results" / "strict_oracle_recipes.jsonl"
FIXES = _ROOT / "tools" / "results" / "strict_oracle_fixes.jsonl"
PLANS = _ROOT / "tools" / "results" / "strict_oracle_plans.jsonl"
_DEFAULT = ("0.23.0.post1", "0.30.0rc2")
_SHOWN = 4


def checkpoint_rows(environment: Environment) -> Iterator[Record]:
    """Verdicts on the good checkpoints and on every damage."""
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        scratch = Path(folder)
        goods = {
            "5.2 w4a8": write_sample(scratch, "w4a8"),
            "5.2 w8a8": write_sample(scratch, "w8a8"),
            "5.1 w4a8": write_sample(scratch, "w4a8", "5.1"),
        }
        trials = [(base, "none", good) for base, good in goods.items()]
        for base, table in (("5.2 w4a8", MUTATIONS), ("5.1 w4a8", MUTATIONS_51)):
            for name, change in table.items():
                made = goods[base].copy()
                change(made)
                trials.append((base, name, made))
        with Oracle(environment, "load", "A3") as oracle:
            for number, (base, name, made) in enumerate(trials):
                target = made.write(scratch / f"trial-{number}")
                record = oracle.ask({"directory": str(target), "mtp": True})
                yield {"base": base, "mutation": name, **compact(record)}


def command_rows(environment: Environment) -> Iterator[Record]:
    """Verdicts on the corpus of commands."""
    yield from _command_rows(environment, corpus())


def recipe_rows(environment: Environment) -> Iterator[Record]:
    """Verdicts on the commands in the release's own pages; the text stays there."""
    yield from _command_rows(environment, recipes(environment.docs))


def fix_rows(environment: Environment) -> Iterator[Record]:
    """Verdicts on repaired commands."""
    yield from _command_rows(environment, fixes(environment.release.version))


def plan_rows(environment: Environment) -> Iterator[Record]:
    """Verdicts on what ``serve --plan`` runs of plans made anew."""
    plan_all_anew(environment.release.version)
    yield from _command_rows(environment, plans(environment.release.version))


def _command_rows(environment: Environment, entries: list[Record]) -> Iterator[Record]:
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        asked = []
        for entry in entries:
            if entry["command"] is None:
                yield {k: v for k, v in entry.items() if k != "command"} | {"verdict": "unread"}
                continue
            command, stands = resolve_model(entry["command"], Path(folder), None)
            asked.append({"argv": command.argv, "env": command.env, "entry": entry, "as": stands})
            asked[-1]["chip"] = entry["chip"]
        for done, record in run_commands(environment, asked, "A3"):
            shown = {k: v for k, v in done["entry"].items() if k != "command"}
            yield {**shown, "model": done["as"], **compact(record), "warnings": record["warnings"]}


def compact(record: Record) -> Record:
    """The parts of a verdict that do not change from run to run, long lists cut."""
    kept = {k: v for k, v in record.items() if k not in ("seconds", "warnings", "config") and v}
    for key in ("uninitialised", "cast", "overwritten", "unread"):
        if key in kept:
            names = kept[key]
            more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
            kept[key] = names[:_SHOWN] + more
    return kept


_KINDS: dict[str, tuple[Path, Callable[[Environment], Iterator[Record]]]] = {
    "checkpoints": (CHECKPOINTS, checkpoint_rows),
    "commands": (COMMANDS, command_rows),
    "recipes": (RECIPES, recipe_rows),
    "fixes": (FIXES, fix_rows),
    "plans": (PLANS, plan_rows),
}


@click.command(help=__doc__)
@click.argument("kind", type=click.Choice(list(_KINDS)))
@click.option("--for", "names", multiple=True, default=_DEFAULT, show_default=True)
def main(kind: str, names: tuple[str, ...]) -> None:
    path, rows = _KINDS[kind]
    releases = [find_release(name) for name in names]
    made = f"python -m tools.oracle.record {kind}"
    kept = [r for r in read_rows(path) if r["release"] not in {x.version for x in releases}]
    for release in releases:
        environment = Environment(release)
        environment.install()
        for row in rows(environment):
            kept.append({"release": release.version, **row, "made_by": made})
            console.note(f"{release.version} {row.get('mutation') or row['id']}: {row['verdict']}")
    kept.sort(key=lambda row: str(row["release"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
    path.write_text(text, encoding="utf-8")


def read_rows(path: Path) -> list[Record]:
    """The recorded rows; none if nothing was recorded."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    try:
        main()
    except Glm5Error as error:
        console.report(error)
        sys.exit(error.exit_code)
