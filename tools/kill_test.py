"""Kill a quantisation again and again, and see that nothing of it shows in the result.

``python -m tools.kill_test --size 20GB --record`` writes a synthetic checkpoint with a release's
tensor shapes, quantises it undisturbed, then twice more with SIGKILL to the process group at
uniform moments, the second time with ``--delete-source``. Each end is compared with the undisturbed
run by manifest; memory is the peak of anonymous and shared memory over the process tree. At the end
``verify`` and the strict oracle judge the checkpoint. A row goes to
``tools/results/kill_test.jsonl``.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from glm5_ascend.cli_quant import Size
from glm5_ascend.console import format_bytes, note
from glm5_ascend.engine_releases import find_release
from glm5_ascend.quant.journal import MANIFEST
from glm5_ascend.quant.verify import VerifyOptions
from glm5_ascend.quant.verify import run as verify
from tools.kill import source as synthetic
from tools.kill.runs import Run, run
from tools.results_table import ROOT, provenance

ROWS = ROOT / "tools" / "results" / "kill_test.jsonl"
RELEASES = ("0.23.0.post1", "0.30.0rc2")
_GIB = 1 << 30
_BASE_BYTES, _WORKER_BYTES = 4 * _GIB, 3 * _GIB // 2
_LEAST_INSIDE = 5
_ORACLE_SHARE = 1.6
_NO_ROOM = "not asked: too little memory for the checkpoint"

Row = dict[str, Any]


class Failed(SystemExit):
    """The test found something."""

    def __init__(self, message: str) -> None:
        super().__init__(f"error: {message}")


class Trial:
    """One checkpoint and the runs over it.

    Args:
        work: directory for everything; its parts are removed as soon as they are compared.
        nbytes: of the source.
        scheme: preset.
        workers: processes.
        seed: of weights and moments.
        shard: limit of one output file in bytes; None for the quantiser's own.
    """

    def __init__(
        self,
        work: Path,
        nbytes: int,
        scheme: str,
        workers: int,
        seed: int,
        shard: int | None = None,
    ) -> None:
        self.work, self.scheme, self.workers, self.shard = work, scheme, workers, shard
        self.random = random.Random(seed)
        self.source = work / "source"
        self.config = synthetic.write(self.source, nbytes, seed)
        self.peak = 0

    def undisturbed(self) -> tuple[dict[str, Any], Run]:
        """Manifest and run that the others are compared with; its weights are removed."""
        out = self.work / "undisturbed"
        whole = self._run(out, "undisturbed", None)
        if whole.code:
            raise Failed(f"the undisturbed run ended with {whole.code}: {whole.errors[-400:]}")
        manifest = _manifest(out)
        shutil.rmtree(out)
        return manifest, whole

    def killed(self, name: str, seconds: float, kills: int, *more: str) -> tuple[Path, list[Run]]:
        """A chain of runs, each killed, that the last one ends.

        The moments are uniform over the ``seconds`` that the undisturbed run wrote for.
        """
        out, runs = self.work / name, list[Run]()
        moments = sorted(self.random.uniform(0, seconds) for _ in range(kills))
        for number, (before, moment) in enumerate(zip([0.0, *moments], moments, strict=False)):
            done = self._run(out, f"{name}-{number}", moment - before, *more)
            if done.code == 0:
                break
            if done.code != -9:
                raise Failed(f"{name} {number} ended with {done.code}: {done.errors[-400:]}")
            runs.append(done)
            note(f"{name}: killed with {done.files} files complete, inside a write: {done.inside}")
        else:
            done = self._run(out, f"{name}-last", None, *more)
            if done.code:
                raise Failed(f"the last run of {name} ended with {done.code}: {done.errors[-400:]}")
        return out, [*runs, done]

    def _run(self, out: Path, name: str, kill_after: float | None, *more: str) -> Run:
        resume = ["--resume"] if out.exists() and any(out.iterdir()) else []
        words = ["quantize", str(self.source), str(out), "--scheme", self.scheme]
        words += ["--workers", str(self.workers), *resume, *more]
        words += [] if self.shard is None else ["--shard-size", str(self.shard)]
        done = run(words, out, self.work / f"{name}.log", kill_after)
        self.peak = max(self.peak, done.peak_bytes)
        return done


def test(trial: Trial, kills: int, *, plain: bool) -> tuple[Path, Row]:
    """All runs; the checkpoint that is left, and what to record.

    Raises:
        Failed: a manifest differs, memory is over its bound, or too few kills hit a write.
    """
    wanted, whole = trial.undisturbed()
    row: Row = {"undisturbed_seconds": round(whole.seconds, 1), "chains": {}}
    chains: list[tuple[str, tuple[str, ...]]] = [("deleting", ("--delete-source",))]
    if plain:
        chains.insert(0, ("killed", ()))
    inside, out = 0, Path()
    for name, more in chains:
        if out.name:
            shutil.rmtree(out)
        out, runs = trial.killed(name, whole.writing_seconds, kills, *more)
        _require_same(name, wanted, _manifest(out))
        inside += sum(done.inside for done in runs)
        row["chains"][name] = {
            "kills": len(runs) - 1,
            "inside_a_write": sum(done.inside for done in runs),
            "files_complete_at_kills": [done.files for done in runs[:-1]],
            "seconds": round(sum(done.seconds for done in runs), 1),
        }
    left = [path.name for path in trial.source.glob("*.safetensors")]
    if left:
        raise Failed(f"--delete-source left {left[0]}")
    bound = _BASE_BYTES + trial.workers * _WORKER_BYTES
    row |= {"peak_bytes": trial.peak, "bound_bytes": bound, "kills_inside_a_write": inside}
    if trial.peak > bound:
        raise Failed(f"memory of {format_bytes(trial.peak)} is over {format_bytes(bound)}")
    if inside < min(_LEAST_INSIDE, kills - 1):
        raise Failed(f"only {inside} kills hit a write; give another --seed or more --kills")
    return out, row


def verdicts(
    out: Path, sample: int, *, oracle: bool, timeout: float, wait: float
) -> Iterator[tuple[str, str]]:
    """What ``verify`` and the strict oracle say, by release.

    The oracle is asked once memory is free, for which it waits ``wait`` seconds at most.
    """
    for name in RELEASES:
        report = verify(VerifyOptions(out, release=find_release(name), sample=sample))
        bad = [finding.message for finding in report.findings]
        yield f"verify {name}", "no findings" if not bad else bad[0]
        if oracle:
            yield f"oracle {name}", _asked(out, name, timeout) if _fits(out, wait) else _NO_ROOM


def _fits(out: Path, wait: float) -> bool:
    """Whether memory holds what the oracle loads, which was seen to take 1.6 times the files."""
    size = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    until = time.monotonic() + wait
    while _free() < _ORACLE_SHARE * size:
        if time.monotonic() >= until:
            return False
        time.sleep(1)
    return True


def _free() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) << 10


def _asked(out: Path, name: str, timeout: float) -> str:
    from tools.oracle.install import CACHE, Environment
    from tools.oracle.releases import find_release as of_oracle
    from tools.oracle.trials import Oracle

    environment = Environment(of_oracle(name), CACHE)
    environment.install()
    with Oracle(environment, "load", "A3") as asked:
        record = asked.ask({"directory": str(out.resolve()), "mtp": True}, timeout)
    return str(record["verdict"])


def _manifest(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    document.pop("source_deleted", None)
    return document


def _require_same(name: str, wanted: dict[str, Any], found: dict[str, Any]) -> None:
    if wanted != found:
        keys = [key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)]
        raise Failed(f"the manifest of {name} differs in {', '.join(sorted(keys))}")


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--size", "nbytes", type=Size(), default=200_000_000, help="Of the source.")
@click.option("--scheme", default="w4a8", help="Preset.")
@click.option("--workers", type=click.IntRange(min=1), default=2)
@click.option("--kills", type=click.IntRange(min=1), default=8, help="In each chain of runs.")
@click.option("--shard-size", "shard", type=Size(), help="Of the outputs.")
@click.option("--seed", type=int, default=1, help="Of weights and moments.")
@click.option(
    "--sample", type=click.IntRange(min=1), default=100, help="Weights that verify reads."
)
@click.option("--plain/--no-plain", default=True, help="Also a chain that keeps the source.")
@click.option("--oracle/--no-oracle", default=True, help="Ask the strict oracle too.")
@click.option("--timeout", type=float, default=900.0, help="Of the oracle, in seconds.")
@click.option("--wait", type=float, default=0.0, help="For the oracle's memory, in seconds.")
@click.option("--work", type=click.Path(path_type=Path), help="Directory for all files.")
@click.option("--record", is_flag=True, help=f"Append a row to {ROWS.relative_to(ROOT)}.")
def main(
    nbytes: int,
    scheme: str,
    workers: int,
    kills: int,
    shard: int | None,
    seed: int,
    sample: int,
    plain: bool,
    oracle: bool,
    timeout: float,
    wait: float,
    work: Path | None,
    record: bool,
) -> None:
    with tempfile.TemporaryDirectory(prefix="glm5-kill-", dir=work) as name:
        started = time.monotonic()
        trial = Trial(Path(name), nbytes, scheme, workers, seed, shard)
        size = sum(file.stat().st_size for file in trial.source.glob("*.safetensors"))
        note(f"source of {format_bytes(size)} written in {time.monotonic() - started:.0f} s")
        out, row = test(trial, kills, plain=plain)
        row["verdicts"] = dict(verdicts(out, sample, oracle=oracle, timeout=timeout, wait=wait))
    row = {
        **provenance(["python", "-m", "tools.kill_test", *_without_place(sys.argv[1:])]),
        "source_bytes": size,
        "experts": trial.config.n_routed_experts,
        "scheme": scheme,
        "workers": workers,
        **row,
    }
    print(json.dumps(row, indent=1))
    if record:
        with open(ROWS, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
    bad = {key: text for key, text in row["verdicts"].items() if text not in _GOOD}
    if bad:
        raise Failed("; ".join(f"{key}: {text}" for key, text in bad.items()))


def _without_place(words: Sequence[str]) -> list[str]:
    """The command without where its files were and how long it waited, which is this place's."""
    kept = list(words)
    for option in ("--work", "--wait"):
        while option in kept:
            at = kept.index(option)
            del kept[at : at + 2]
    return kept


_GOOD: Sequence[str] = ("no findings", "accepted")


if __name__ == "__main__":
    main()
