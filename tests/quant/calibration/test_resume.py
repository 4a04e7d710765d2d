"""A calibrated run that is killed continues at the layer it was in, and gives the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.calibration.session import STATE
from glm5_ascend.quant.command import run
from tests.quant.calibration import kills
from tests.quant.calibration.kills import options
from tests.quant.conftest import contents, json_of
from tests.support.tiny_model import write_tiny

ROOT = Path(__file__).parents[3]
WORDS = ("ab", "cd", "ef", "gh")


def work_dir(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.calibration")


def run_script(*arguments: object) -> list[str]:
    command = [sys.executable, "-m", kills.__name__, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_tiny(tmp_path_factory.mktemp("kills") / "source", tokenizer=True)
    lines = [{"text": f"{word} on line {i}\n" * 3} for i, word in enumerate(WORDS)]
    text = "".join(json.dumps(line) + "\n" for line in lines * 5)
    (directory / "text.jsonl").write_text(text)
    return directory


@pytest.fixture(scope="module")
def events(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Write points of a whole run, and its output."""
    reference = tmp_path_factory.mktemp("reference") / "out"
    return json.loads(run_script("count", source, reference)[-1]), reference


def test_the_same_bytes_after_sigkill(
    source: Path, events: tuple[list[str], Path], tmp_path: Path
) -> None:
    names, reference = events
    saved = [i for i, name in enumerate(names) if name == f"after rename {STATE}"]
    assert len(saved) == 6  # at the start and after each of five layers
    moments = [9, saved[2], saved[3] - 1, saved[4] + 1, len(names) - 12]
    reports = [json.loads(line) for line in run_script("each", source, tmp_path, *moments)]
    assert [report["signal"] for report in reports] == [signal.SIGKILL] * len(moments)
    continued = 0
    for moment in moments:
        destination = tmp_path / f"killed-{moment}"
        state = work_dir(destination) / STATE
        solved = json_of(state)["solved"] if state.exists() else []
        continued += 0 < len(solved) < 5
        run(options(source, destination, resume=True))
        assert contents(destination) == contents(reference), names[moment]
        assert not work_dir(destination).exists()
    assert continued >= 2


def test_two_workers_give_the_same_bytes(
    source: Path, events: tuple[list[str], Path], tmp_path: Path
) -> None:
    run(options(source, tmp_path / "out", workers=2))
    assert contents(tmp_path / "out") == contents(events[1])


def test_a_finished_run_can_be_resumed(source: Path, tmp_path: Path) -> None:
    destination = tmp_path / "out"
    run(options(source, destination))
    before = contents(destination)
    done = run(options(source, destination, resume=True))
    assert done.files_resumed == done.files
    assert contents(destination) == before
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def killed_in_the_middle(source: Path, names: list[str], directory: Path) -> Path:
    saved = [i for i, name in enumerate(names) if name == f"after rename {STATE}"]
    run_script("each", source, directory, saved[3])
    return directory / f"killed-{saved[3]}"


def test_a_lost_solution_has_the_calibration_begin_anew(
    source: Path,
    events: tuple[list[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    destination = killed_in_the_middle(source, events[0], tmp_path)
    for file in work_dir(destination).glob("solution-*"):
        file.unlink()
    run(options(source, destination, resume=True))
    assert "begins anew" in capsys.readouterr().err
    assert contents(destination) == contents(events[1])


def test_another_text_or_setting_is_refused(
    source: Path, events: tuple[list[str], Path], tmp_path: Path
) -> None:
    destination = killed_in_the_middle(source, events[0], tmp_path)
    wanted = options(source, destination, resume=True)
    floating = replace(wanted.calibration.setting, propagate="float")
    with pytest.raises(CheckpointError, match="another source, text or options"):
        run(replace(wanted, calibration=replace(wanted.calibration, setting=floating)))
    with pytest.raises(CheckpointError, match="differs in"):
        run(replace(wanted, calibration=replace(wanted.calibration, tokens=300)))
    text = source / "text.jsonl"
    before = text.read_text()
    text.write_text(before.replace("ab", "xy"))
    try:
        with pytest.raises(CheckpointError, match="another source, text or options"):
            run(wanted)
    finally:
        text.write_text(before)


def test_a_work_directory_with_other_files_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mine").write_text("kept")
    wanted = options(source, tmp_path / "out")
    with pytest.raises(CheckpointError, match="it holds mine"):
        run(replace(wanted, calibration=replace(wanted.calibration, work_dir=tmp_path / "work")))
    assert (tmp_path / "work" / "mine").read_text() == "kept"


def test_an_unusable_work_directory_leaves_nothing(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    wanted = options(source, tmp_path / "out")
    for place in (tmp_path / "file" / "work", Path("/proc/no/work"), tmp_path / ("n" * 300)):
        with pytest.raises(CheckpointError, match="cannot write in"):
            run(replace(wanted, calibration=replace(wanted.calibration, work_dir=place)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
