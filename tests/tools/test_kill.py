"""The kill test on a small checkpoint, and that it would notice what it looks for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from glm5_ascend.checkpoint import CheckpointReader, expected_tensors, tensor_bytes
from glm5_ascend.config import Glm5Config
from tools import kill_test
from tools.kill import runs
from tools.kill import source as synthetic


@pytest.mark.slow
def test_killed_runs_end_with_the_same_manifest(tmp_path: Path) -> None:
    words = ["--size", "200MB", "--kills", "2", "--no-plain", "--no-oracle", "--work", tmp_path]
    result = CliRunner().invoke(kill_test.main, [*map(str, words), "--shard-size", "5MB"])
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert row["chains"]["deleting"]["kills"] >= 1
    assert row["kills_inside_a_write"] >= 1
    assert row["verdicts"] == dict.fromkeys(
        ("verify 0.23.0.post1", "verify 0.30.0rc2"), "no findings"
    )
    # Interpreter and torch alone are more than this, for a parent and two workers.
    assert 300 << 20 < row["peak_bytes"] < row["bound_bytes"] == 7 << 30
    assert list(tmp_path.iterdir()) == []


def test_shapes_are_those_of_the_release() -> None:
    release = Glm5Config.from_dict(json.loads(synthetic.RELEASE.read_text()), source="GLM-5.2")
    config = Glm5Config.from_dict(synthetic.config_of(20_000_000_000), source="synthetic")
    wanted, found = expected_tensors(release), expected_tensors(config)
    total = sum(map(tensor_bytes, found.values()))
    assert 20e9 <= total < 20.3e9
    # Layer 5 has experts and no indexer; the MTP layer has both.
    for name, spec in found.items():
        other = name.replace("layers.6.", "layers.78.")
        if not name.endswith((".mlp.gate.weight", ".e_score_correction_bias")):
            assert spec == wanted[other], name
    with pytest.raises(SystemExit, match="hold no model"):
        synthetic.config_of(10_000_000)


def test_the_checkpoint_is_complete_and_seeded(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "made", 200_000_000, 1)
    with CheckpointReader(tmp_path / "made") as reader:
        reader.check_inventory(expected_tensors(reader.config))
        for name in reader.names():
            reader.check_finite(name)
        assert len(reader.files()) > 8
    first, same, other = (synthetic._pool(seed) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_memory_of_the_whole_tree_is_counted() -> None:
    child = (
        "import time; held = bytearray(b'x') * (100 << 20);"
        "print(len(held), flush=True); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=sys.stdout);"
        "child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 100 << 20 < runs.tree_bytes(process.pid) < 160 << 20
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            subprocess.run(["kill", pid], check=True)


def test_what_was_under_way(tmp_path: Path) -> None:
    assert not runs._is_inside(tmp_path)
    (tmp_path / "quantize_journal.json").write_text('{"job": {}, "files": [], "done": {}}')
    assert not runs._is_inside(tmp_path)
    for name in ("x.safetensors", ".x.safetensors.part", ".quantize_journal.json.part"):
        (tmp_path / name).touch()
        assert runs._is_inside(tmp_path)
        (tmp_path / name).unlink()


def test_a_difference_fails() -> None:
    wanted = {"weights": {"a": {"bytes": 1, "sha256": "0"}}, "texts": {}}
    kill_test._require_same("run", wanted, json.loads(json.dumps(wanted)))
    other = {"weights": {"a": {"bytes": 1, "sha256": "1"}}, "texts": {}}
    with pytest.raises(kill_test.Failed, match="the manifest of run differs in weights"):
        kill_test._require_same("run", wanted, other)


def test_recorded_runs_are_what_was_asked_for() -> None:
    """The last of full-size shapes, with five kills inside a write; the oracle took all."""
    rows = [json.loads(line) for line in kill_test.ROWS.read_text().splitlines()]
    assert rows[-1]["source_bytes"] >= 20e9
    for row in rows:
        told = row["verdicts"]
        for name in kill_test.RELEASES:
            assert told[f"verify {name}"] == "no findings"
            assert told[f"oracle {name}"] == "accepted"
        assert row["peak_bytes"] < row["bound_bytes"] == (4 << 30) + row["workers"] * (3 << 29)
        assert "/" not in row["command"].replace("tools/", "")
        if row["source_bytes"] >= 20e9:
            assert row["kills_inside_a_write"] >= 5
            assert set(row["chains"]) == {"killed", "deleting"}


def test_the_oracle_waits_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(100))
    free = iter((159, 160))
    monkeypatch.setattr(kill_test, "_free", lambda: next(free))
    assert not kill_test._fits(tmp_path, 0)
    assert kill_test._fits(tmp_path, 0)
    free = iter((159, 159, 160))
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert kill_test._fits(tmp_path, 60)
