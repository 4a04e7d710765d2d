"""``--delete-source``, ``--shard-size`` and ``--numa``: what goes when, kills, and refusals."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from safetensors import safe_open

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.cli import cli
from glm5_ascend.errors import CheckpointError, DoesNotFit
from glm5_ascend.quant import command, source_release, work, workers
from glm5_ascend.quant.command import QuantizeOptions, run
from glm5_ascend.quant.journal import JOURNAL
from glm5_ascend.quant.plan import make_plan
from glm5_ascend.quant.recipe_file import preset
from tests.quant import damage
from tests.quant.conftest import contents, json_of, quantize
from tests.quant.killed_runs import SHARD_BYTES


def invoke(*words: object) -> Result:
    return CliRunner().invoke(cli, ["quantize", *map(str, words)])


@pytest.fixture
def own(source: Path, tmp_path: Path) -> Path:
    """A copy that may be deleted."""
    return Path(shutil.copytree(source, tmp_path / "own"))


def options(own: Path, out: Path, **changes: Any) -> QuantizeOptions:
    given = {"delete_source": True, "shard_bytes": SHARD_BYTES} | changes
    return QuantizeOptions(own, out, "w4a8", **given)


@pytest.fixture(scope="module")
def wanted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("wanted") / "out"
    return contents(quantize(source, out, "w4a8", shard_bytes=SHARD_BYTES))


def assert_same(out: Path, wanted: dict[str, bytes]) -> None:
    """Equal but for what the manifest says about the source's files."""
    found = contents(out)
    assert found.keys() == wanted.keys()
    for name in found:
        if name != "quantize_manifest.json":
            assert found[name] == wanted[name], name
    manifest, other = (json.loads(c["quantize_manifest.json"]) for c in (found, wanted))
    assert manifest["weights"] == other["weights"]


@pytest.mark.parametrize("count", [1, 2])
def test_outputs_are_the_same_and_the_source_is_gone(
    own: Path, tmp_path: Path, wanted: dict[str, bytes], count: int
) -> None:
    files = sorted(path.name for path in own.glob("*.safetensors"))
    kept = {path.name for path in own.iterdir()} - set(files)
    summary = run(options(own, tmp_path / "out", workers=count))
    assert_same(tmp_path / "out", wanted)
    assert summary.source_deleted == len(files) == 3
    assert "3 source files deleted" in summary.as_text()
    assert {path.name for path in own.iterdir()} == kept
    assert json_of(tmp_path / "out" / "quantize_manifest.json")["source_deleted"] == files


def test_a_file_goes_only_after_its_last_consumer(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each cut every output that the safetensors library says it fed is complete and hashed."""
    names = {}
    for file in own.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names[file.name] = set(opened.keys())
    with CheckpointReader(own) as reader:
        plan = make_plan(reader.config, preset("w4a8"), SHARD_BYTES)
    fed = {
        file: {
            shard.file
            for shard in plan.shards
            for step in shard.steps
            if {step.source, *step.fold.norms} & held
        }
        for file, held in names.items()
    }
    cut = source_release._cut
    order = []

    def watched(file: Path) -> None:
        journal = json_of(tmp_path / "out" / JOURNAL)
        assert fed[file.name] <= set(journal["done"])
        assert file.name in journal["released"]
        order.append(file.name)
        cut(file)
        # Space is free at once; what is left still says what was in the file.
        assert set(json.loads(file.read_bytes()[8:])) - {"__metadata__"} == names[file.name]

    monkeypatch.setattr(source_release, "_cut", watched)
    run(options(own, tmp_path / "out"))
    assert sorted(order) == sorted(names)


def killed_at(own: Path, out: Path, moment: int) -> bool:
    """Run in a child that dies without clean-up before or after a call of a write point."""
    child = os.fork()
    if child == 0:
        calls = itertools.count(1)

        def dying(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                if next(calls) == moment:
                    os._exit(9)
                result = original(*args, **kwargs)
                if next(calls) == moment:
                    os._exit(9)
                return result

            return wrapped

        source_release._cut = dying(source_release._cut)
        os.replace = dying(os.replace)
        Path.unlink = dying(Path.unlink)  # type: ignore[method-assign]
        run(options(own, out, resume=out.exists()))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_killed_at_every_cut_and_rename(
    source: Path, tmp_path: Path, wanted: dict[str, bytes]
) -> None:
    """A chain of runs, each killed a little later than the one before, ends with the same bytes."""
    own, out = Path(shutil.copytree(source, tmp_path / "own")), tmp_path / "out"
    kills, moment = 0, 1
    while killed_at(own, out, moment):
        kills += 1
        moment += 3
        assert kills < 100
    assert kills > 8
    assert_same(out, wanted)
    assert not list(own.glob("*.safetensors"))


def test_killed_while_the_source_is_removed(
    own: Path, tmp_path: Path, wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(source: Path, released: dict[str, str]) -> None:
        (source / min(released)).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("glm5_ascend.quant.stream.remove", half)
    with pytest.raises(KeyboardInterrupt):
        run(options(own, tmp_path / "out"))
    assert (tmp_path / "out" / JOURNAL).exists()
    assert len(list(own.glob("*.safetensors"))) == 2
    monkeypatch.undo()
    run(options(own, tmp_path / "out", resume=True))
    assert_same(tmp_path / "out", wanted)
    assert not list(own.glob("*.safetensors"))


def test_killed_after_everything(own: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    """The journal and the source are gone; the same command says that the job is complete."""
    out = tmp_path / "out"
    run(options(own, out))
    summary = run(options(own, out, resume=True))
    assert summary.files == summary.files_resumed == len(weights_of(out))
    assert summary.source_deleted == 3
    assert_same(out, wanted)
    with pytest.raises(CheckpointError, match="differs in dtype"):
        run(options(own, out, resume=True, dtype="float32"))
    file = weights_of(out)[-1]
    damage.flip_byte(file, -1)
    with pytest.raises(CheckpointError, match=f"source deleted, but {file.name} differs"):
        run(options(own, out, resume=True))
    file.unlink()
    with pytest.raises(CheckpointError, match=f"source deleted, but {file.name} differs"):
        run(options(own, out, resume=True))


def test_a_source_that_came_back_is_used(
    own: Path, tmp_path: Path, source: Path, wanted: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    run(options(own, out))
    shutil.copytree(source, own, dirs_exist_ok=True)
    file = weights_of(out)[0]
    damage.flip_byte(file, -1)
    run(options(own, out, resume=True))
    assert_same(out, wanted)
    assert not list(own.glob("*.safetensors"))


def weights_of(out: Path) -> list[Path]:
    return sorted(out.glob("*.safetensors"))


def interrupted(own: Path, out: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """A run that stops once ``after`` outputs are complete."""
    written = []

    def counted(*args: Any) -> Any:
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(args)
        return work.write_file(*args)

    monkeypatch.setattr(workers, "write_file", counted)
    with pytest.raises(KeyboardInterrupt):
        run(options(own, out))
    monkeypatch.undo()


def test_a_damaged_output_whose_source_is_gone(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with CheckpointReader(own) as reader:
        plan = make_plan(reader.config, preset("w4a8"), SHARD_BYTES)
        waiting = source_release.consumers(reader, plan)
    interrupted(own, out, monkeypatch, len(plan.shards) - 1)
    gone = min(json_of(out / JOURNAL)["released"])
    damage.flip_byte(out / min(waiting[gone]), -1)
    with pytest.raises(CheckpointError, match=r"is damaged, and .* has been deleted") as caught:
        run(options(own, out, resume=True))
    assert gone in str(caught.value)


def test_a_source_that_changed_is_not_cut(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = min(own.glob("*.safetensors"))
    size = changed.stat().st_size

    def touched(*args: Any) -> Any:
        os.utime(changed, ns=(1, 1))
        return work.write_file(*args)

    monkeypatch.setattr(workers, "write_file", touched)
    with pytest.raises(CheckpointError, match="changed during the run"):
        run(options(own, tmp_path / "out"))
    assert changed.stat().st_size == size


def test_a_cut_file_is_no_source_of_another_job(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointReader(own) as reader:
        count = len(make_plan(reader.config, preset("w4a8"), SHARD_BYTES).shards)
    interrupted(own, tmp_path / "out", monkeypatch, count - 1)
    for more in ({"delete_source": False}, {}):
        with pytest.raises(CheckpointError, match="truncated"):
            run(options(own, tmp_path / "other", **more))
    # The journal of the first run is what allows it, with the flag or without.
    left = len(list(own.glob("*.safetensors")))
    run(options(own, tmp_path / "out", resume=True, delete_source=False))
    assert 0 < len(list(own.glob("*.safetensors"))) < left


LINKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "link to a file": (
        lambda own: (
            os.rename(own / "model-00001-of-00003.safetensors", own.parent / "blob"),
            (own / "model-00001-of-00003.safetensors").symlink_to(own.parent / "blob"),
        ),
        "not a regular file",
    ),
    "second name": (
        lambda own: os.link(own / "model-00001-of-00003.safetensors", own.parent / "second"),
        "has another name",
    ),
    "link to a directory": (
        lambda own: (os.rename(own, own.parent / "real"), own.symlink_to(own.parent / "real")),
        "is a symbolic link",
    ),
}


@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("dry", [True, False])
def test_files_that_may_be_someone_elses(own: Path, tmp_path: Path, case: str, dry: bool) -> None:
    change, words = LINKS[case]
    change(own)
    before = {path.name: path.stat().st_size for path in own.iterdir()}
    more = ["--dry-run"] if dry else []
    result = invoke(own, tmp_path / "out", "--scheme", "w8a8", "--delete-source", *more)
    assert result.exit_code == 1
    assert words in result.stderr
    assert {path.name: path.stat().st_size for path in own.iterdir()} == before
    assert not (tmp_path / "out").exists()


def test_a_calibration_reads_the_source_again(own: Path, tmp_path: Path) -> None:
    words = [own, tmp_path / "out", "--scheme", "w4a8", "--calibration", "default"]
    result = invoke(*words, "--delete-source")
    assert result.exit_code == 1
    assert "reads the source several times" in result.stderr


def test_dry_run_says_what_goes_when(own: Path, tmp_path: Path) -> None:
    words = [own, tmp_path / "out", "--scheme", "w8a8", "--delete-source", "--dry-run"]
    text = invoke(*words).stdout
    assert "  deletes   after output file " in text
    document = json.loads(invoke(*words, "--json").stdout)
    going = document["source_files_deleted"]
    assert len({item["file"] for item in going}) == 3
    assert sum(item["nbytes"] for item in going) == document["source_bytes"]
    assert max(item["after"] for item in going) == document["files"]
    plain = json.loads(invoke(*words[:-2], "--dry-run", "--json").stdout)
    assert plain["source_files_deleted"] == []
    assert document["disk_needed_bytes"] < plain["disk_needed_bytes"]
    assert all(path.stat().st_size > 10_000 for path in own.glob("*.safetensors"))


def test_growth_counts_what_is_under_way(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointReader(own) as reader:
        shards = make_plan(reader.config, preset("w4a8"), SHARD_BYTES).shards
        sizes = source_release.data_bytes(reader)
        plan = make_plan(reader.config, preset("w4a8"), SHARD_BYTES)
        waiting = source_release.consumers(reader, plan)
    going = source_release.departures(sizes, waiting, shards)
    for count in (1, 3):
        # By simulation: files are complete in order, ``count`` of them grow at once.
        most = 0
        for done in range(len(shards)):
            held = sum(shard.nbytes for shard in shards[: done + count])
            finished = {shard.file for shard in shards[:done]}
            gone = sum(sizes[file] for file, needed in waiting.items() if needed <= finished)
            most = max(most, held - gone)
        assert source_release.peak_growth(going, shards, count) == most
    monkeypatch.setattr(
        "glm5_ascend.quant.destination.require_free_space",
        lambda directory, nbytes: (_ for _ in ()).throw(DoesNotFit(f"{nbytes}", "")),
    )
    asked = {}
    for name, more in {"with": {}, "without": {"delete_source": False}}.items():
        with pytest.raises(DoesNotFit) as caught:
            run(options(own, tmp_path / "out", **more))
        asked[name] = int(caught.value.message)
    total = sum(shard.nbytes for shard in shards)
    saved = total - source_release.peak_growth(going, shards, 1)
    assert asked["without"] - asked["with"] == saved > 0


def test_source_hashes_are_taken_before_the_data_goes(own: Path, tmp_path: Path) -> None:
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in own.glob("*.safetensors")
    }
    run(options(own, tmp_path / "out", hash_source=True))
    assert json_of(tmp_path / "out" / "quantize_manifest.json")["source_sha256"] == digests


# Sizes of files.


def test_shard_size(own: Path, tmp_path: Path) -> None:
    words = ["--scheme", "w8a8", "--shard-size", "200kB"]
    assert invoke(own, tmp_path / "out", *words).exit_code == 0
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("quant*.safetensors")]
    assert len(sizes) > 5
    assert sorted(sizes)[len(sizes) // 2] < 220_000
    for bad in ("0", "-1GB", "1PB", "GB", "4gb"):
        result = invoke(own, tmp_path / "bad", "--scheme", "w8a8", "--shard-size", bad)
        assert result.exit_code == 2, bad
        assert "is no size" in result.stderr


@pytest.mark.parametrize(
    ("text", "size"), [("4GB", 4e9), ("2GiB", 2 << 30), ("1.5 MiB", 1.5 * 2**20), ("7", 7)]
)
def test_units(text: str, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def stop(wanted: QuantizeOptions) -> None:
        seen.append(wanted.shard_bytes)
        raise CheckpointError("stop", "")

    monkeypatch.setattr(command, "run", stop)
    invoke("a", "b", "--scheme", "w8a8", "--shard-size", text)
    assert seen == [int(size)]
