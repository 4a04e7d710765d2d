"""Killed, interrupted, resumed, on one worker or two: always the same bytes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from glm5_ascend.errors import CheckpointError, ChildFailed
from glm5_ascend.quant import work, workers
from glm5_ascend.quant.command import QuantizeOptions, run
from glm5_ascend.quant.journal import JOURNAL, MANIFEST
from glm5_ascend.quant.recipe_file import preset
from glm5_ascend.quant.stream import prepare
from tests.quant import killed_runs
from tests.quant.conftest import contents, json_of
from tests.quant.killed_runs import SHARD_BYTES

ROOT = Path(__file__).parents[2]
MOMENTS = 20


def options(source: Path, destination: Path, **changes: object) -> QuantizeOptions:
    defaults: dict[str, object] = {"scheme": "w4a8", "shard_bytes": SHARD_BYTES}
    return QuantizeOptions(source, destination, **(defaults | changes))  # type: ignore[arg-type]


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def run_script(*arguments: object) -> list[str]:
    command = python(killed_runs.__name__, *map(str, arguments))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def reference(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reference") / "out"
    run(options(source, directory))
    return directory


def test_the_same_bytes_after_sigkill_at_twenty_moments(
    source: Path, reference: Path, tmp_path: Path
) -> None:
    names: list[str] = json.loads(run_script("count", source, tmp_path / "reference")[-1])
    assert contents(tmp_path / "reference") == contents(reference)
    moments = chosen_moments(names)
    reports = [json.loads(line) for line in run_script("each", source, tmp_path, *moments)]
    assert [report["signal"] for report in reports] == [signal.SIGKILL] * MOMENTS
    unfinished = between_rename_and_journal = 0
    for moment in moments:
        destination = tmp_path / f"killed-{moment}"
        present = {path.name for path in destination.iterdir()}
        unfinished += MANIFEST not in present
        if JOURNAL in present:
            done = set(json_of(destination / JOURNAL)["done"])
            shards = {name for name in present if name.endswith(".safetensors")}
            between_rename_and_journal += bool(shards - done)
        summary = run(options(source, destination, resume=True))
        assert summary.files_resumed <= summary.files
        assert contents(destination) == contents(reference), names[moment]
    assert unfinished >= 15
    assert between_rename_and_journal >= 3


def chosen_moments(names: list[str]) -> list[int]:
    """Evenly from the first event to the last, and some between a rename and the journal's."""
    shards = [
        number
        for number, name in enumerate(names)
        if name.startswith("after rename ") and name.endswith(".safetensors")
    ]
    assert len(shards) >= 8
    special = [shards[0], shards[len(shards) // 2], shards[-2], shards[-1]]
    free = [number for number in range(len(names)) if number not in special]
    count = MOMENTS - len(special)
    even = [free[round(i * (len(free) - 1) / (count - 1))] for i in range(count)]
    moments = sorted({*special, *even})
    assert len(moments) == MOMENTS
    return moments


def test_repeated_kills_of_one_run(source: Path, reference: Path, tmp_path: Path) -> None:
    """Each attempt gets a little further before it is killed; the last one finishes."""
    destination = tmp_path / "out"
    run_script("chain", source, destination, 90, 90, 90)
    done = len(json_of(destination / JOURNAL)["done"])
    assert done >= 3
    assert run(options(source, destination, resume=True)).files_resumed == done
    assert contents(destination) == contents(reference)


def test_two_workers_write_the_same_bytes(source: Path, reference: Path, tmp_path: Path) -> None:
    run(options(source, tmp_path / "out", workers=2))
    assert contents(tmp_path / "out") == contents(reference)


def test_interrupt_in_this_process(
    source: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of a file removes its part and leaves the rest resumable."""
    convert, steps = work.convert, iter(range(10**6))

    def interrupted(*args: Any) -> Iterator[tuple[str, memoryview]]:
        if next(steps) == 70:
            raise KeyboardInterrupt
        yield from convert(*args)

    monkeypatch.setattr(work, "convert", interrupted)
    destination = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(options(source, destination))
    assert not list(destination.glob(".*"))
    monkeypatch.undo()
    assert run(options(source, destination, resume=True)).files_resumed > 0
    assert contents(destination) == contents(reference)


def test_a_second_run_on_the_same_destination_is_refused(source: Path, tmp_path: Path) -> None:
    destination = tmp_path / "out"
    destination.mkdir()
    handle = os.open(destination, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(CheckpointError, match="another run"):
        run(options(source, destination))
    os.close(handle)
    assert not list(destination.iterdir())


def test_a_file_that_reads_back_differently_is_refused(
    source: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that flips a byte of the third file is noticed; that file is written again."""
    write, count = work.write_shard, iter(range(100))

    def damaged(path: Path, *args: Any) -> None:
        write(path, *args)
        if next(count) == 2:
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)

    monkeypatch.setattr(work, "write_shard", damaged)
    destination = tmp_path / "out"
    with pytest.raises(CheckpointError, match="reads back differently"):
        run(options(source, destination))
    monkeypatch.undo()
    assert run(options(source, destination, resume=True)).files_resumed == 2
    assert contents(destination) == contents(reference)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_signals_to_a_real_command(
    number: signal.Signals, source: Path, reference: Path, tmp_path: Path
) -> None:
    """Ctrl-C ends with 130 and a resumable destination; SIGKILL leaves no worker behind."""
    destination = tmp_path / "out"
    command = python("tests.quant.slow_command", str(source), str(destination))
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, process_group=0
    )
    wait_for_files(destination, process)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "--resume" in errors
        assert "Traceback" not in errors
    else:
        process.kill()
        process.communicate(timeout=60)
    assert group_is_gone(process.pid)
    assert JOURNAL in {path.name for path in destination.iterdir()}
    run(options(source, destination, resume=True))
    assert contents(destination) == contents(reference)


@pytest.mark.parametrize("files", [0, 2])
def test_a_worker_killed_by_the_system(
    files: int, source: Path, reference: Path, tmp_path: Path
) -> None:
    """Out of memory at the start or in the middle: exit code 7, and --resume finishes the job."""
    destination = tmp_path / "out"
    killed: list[int] = []

    def kill_one() -> None:
        limit = time.monotonic() + 60
        while not killed and time.monotonic() < limit:
            ready = len(list(destination.glob("*.safetensors"))) >= files
            for process in active_children():
                if ready and process.pid is not None:
                    os.kill(process.pid, signal.SIGKILL)
                    killed.append(process.pid)
                    return
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(ChildFailed, match=r"SIGKILL while writing .*\.safetensors") as caught:
        run(options(source, destination, workers=2))
    killer.join()
    assert killed
    assert caught.value.exit_code == 7
    assert "--resume" in caught.value.hint
    assert not active_children()
    run(options(source, destination, resume=True))
    assert contents(destination) == contents(reference)


def test_workers_killed_before_their_first_file(source: Path, tmp_path: Path) -> None:
    plan, _, _, _ = prepare(source, preset("w4a8"), SHARD_BYTES)
    job = workers.Job(source, tmp_path, rotate=True)
    pool = workers._Pool(job, plan.shards, 2, lambda nbytes: None, lambda shard, record: None)
    for process in active_children():
        process.kill()
        process.join()
    with pytest.raises(ChildFailed, match="SIGKILL"):
        pool.run()


def wait_for_files(directory: Path, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        assert process.poll() is None, process.communicate()
        if len(list(directory.glob("*.safetensors"))) >= 2:
            return
        time.sleep(0.02)
    raise AssertionError("no file appeared")


def group_is_gone(group: int) -> bool:
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
