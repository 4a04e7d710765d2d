"""``glm5-ascend quantize``: options in, a checkpoint and a summary out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from glm5_ascend.checkpoint import tensor_bytes
from glm5_ascend.console import format_bytes
from glm5_ascend.engine_releases import Release
from glm5_ascend.errors import CheckpointError, ConfigError, Glm5Error, PreflightError
from glm5_ascend.quant import recipe_file
from glm5_ascend.quant.backend import CPU, Backend
from glm5_ascend.quant.calibration.options import FROM_RECIPE, CalibrationOptions
from glm5_ascend.quant.plan import Plan, Shard
from glm5_ascend.quant.recipe_rules import DtypeName, FormatName, MtpName, Recipe

if TYPE_CHECKING:
    from glm5_ascend.quant.calibration.calibrated_run import CalibratedRun
    from glm5_ascend.quant.destination import Need
    from glm5_ascend.quant.journal import Journal


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """What the command line was asked for.

    Attributes:
        source: Hugging Face checkpoint, BF16, F32 or FP8.
        destination: directory to write; absent or empty unless resume or overwrite is given.
        scheme: name of a preset; ignored if there is a recipe.
        recipe: YAML file of the user's own.
        release: engine that has to load the output.
        backend: what carries out the arithmetic.
        rotate: fuse norms and rotate (QuaRot); here and below, None is what the recipe says.
        dtype: dtype of the tensors that stay float.
        format: of the files: for vllm-ascend, or compressed-tensors for vLLM elsewhere.
        mtp: the MTP layer's linears and experts in int8, float, or as the rules say.
        workers: processes.
        resume: continue an interrupted run of the same job.
        overwrite: replace the output of an earlier run.
        shard_bytes: limit of one output file; None decides from the size of the model.
        hash_source: put the SHA-256 of each source file into the manifest, which reads it again.
        calibration: text, budget and way of a calibration; None is what the recipe says.
        delete_source: cut each source file once no output needs it, and remove all at the end.
        numa: pin the workers to NUMA nodes, round-robin.
    """

    source: Path
    destination: Path
    scheme: str = "w4a8"
    rotate: bool | None = None
    dtype: DtypeName | None = None
    mtp: MtpName | None = None
    workers: int = 1
    resume: bool = False
    overwrite: bool = False
    shard_bytes: int | None = None
    hash_source: bool = False
    recipe: Path | None = None
    release: Release | None = None
    backend: Backend = CPU
    calibration: CalibrationOptions = FROM_RECIPE
    delete_source: bool = False
    numa: bool = False
    format: FormatName | None = None

    def wanted(self) -> Recipe:
        """The recipe of the run; ``ConfigError`` for a preset or file that cannot be read."""
        base = (
            recipe_file.preset(self.scheme)
            if self.recipe is None
            else recipe_file.read(self.recipe)
        )
        recipe = recipe_file.overridden(
            base, rotate=self.rotate, dtype=self.dtype, mtp=self.mtp, format=self.format
        )
        return self.calibration.applied(recipe)


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a run; sizes in bytes of tensor data."""

    destination: Path
    scheme: str
    rotated: bool
    output_bytes: int
    files: int
    files_resumed: int
    seconds: float
    bytes_by_scheme: dict[str, int] = field(default_factory=dict)
    engine: str | None = None
    source_deleted: int = 0
    numa: str | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the summary as one JSON object."""
        return {
            "schema": 1,
            "destination": str(self.destination),
            "scheme": self.scheme,
            "rotated": self.rotated,
            "engine": self.engine,
            "output_bytes": self.output_bytes,
            "files": self.files,
            "files_resumed": self.files_resumed,
            "seconds": round(self.seconds, 3),
            "bytes_by_scheme": self.bytes_by_scheme,
            "source_files_deleted": self.source_deleted,
            "numa": self.numa,
        }

    def as_text(self) -> str:
        """Return a few lines for people."""
        parts = ", ".join(
            f"{scheme} {format_bytes(size)}" for scheme, size in self.bytes_by_scheme.items()
        )
        resumed = f", {self.files_resumed} of them from before" if self.files_resumed else ""
        return (
            f"{self.destination}: {format_bytes(self.output_bytes)} in {self.files} files"
            f"{resumed}, {self.seconds:.1f} s\n{parts}"
            + ("" if self.engine is None else f"\nfor {self.engine}")
            + (f"\n{self.source_deleted} source files deleted" if self.source_deleted else "")
            + ("" if self.numa is None else f"\n{self.numa}")
        )


def run(options: QuantizeOptions) -> Summary:
    """Quantise a checkpoint.

    Everything that can be checked is checked before the destination is touched.

    Raises:
        Glm5Error: see its subclasses; the destination is absent, or can be resumed.
        KeyboardInterrupt: interrupted; the destination can be resumed.
    """
    _require_torch()
    from glm5_ascend.quant import destination as place
    from glm5_ascend.quant import numa, stream
    from glm5_ascend.quant.journal import without_source

    started = time.monotonic()
    source, destination = Path(options.source), Path(options.destination)
    if options.resume and options.overwrite:
        raise Glm5Error("--resume and --overwrite exclude each other", "give one of them")
    place.require_separate(source, destination)
    recipe = options.wanted()
    options.backend.require()
    earlier = _earlier(options, recipe)
    if earlier is not None and earlier.is_closing:
        return _closed(options, recipe, earlier, started)
    finished = without_source(destination, source) if options.resume and not earlier else None
    if finished is not None:
        _require_whole(destination)
        return _closed(options, recipe, finished, started)
    plan, texts, journal, waiting = stream.prepare(
        source, recipe, options.shard_bytes, options.release, options.backend, earlier
    )
    journal.directory = destination
    calibrated = _calibrated(options, plan, journal)
    nodes = numa.nodes() if options.numa else []
    placed = numa.placement(nodes, options.workers) if options.workers > 1 else []
    ready = place.destination(
        journal,
        plan,
        _need(options, waiting),
        resume=options.resume,
        overwrite=options.overwrite,
    )
    try:
        with ready:
            resumed = len(journal.done)
            cpus = [node.cpus for node in placed]
            _write(options, (plan, texts, journal, waiting), calibrated, cpus)
    except KeyboardInterrupt as error:
        done = f"{len(journal.done)} of {len(plan.shards)} files are complete"
        raise KeyboardInterrupt(f"{done}; the same command with --resume continues") from error
    return Summary(
        destination,
        recipe.name,
        recipe.rotate,
        plan.nbytes,
        len(plan.shards),
        resumed,
        time.monotonic() - started,
        _bytes_by_scheme(plan),
        None if options.release is None else str(options.release),
        len(journal.released),
        numa.describe(nodes, placed) if options.numa else None,
    )


def _write(
    options: QuantizeOptions,
    prepared: tuple[Plan, Mapping[str, bytes], Journal, Mapping[str, set[str]]],
    calibrated: CalibratedRun | None,
    cpus: Sequence[Collection[int]],
) -> None:
    """Everything that goes into the destination, which is ready."""
    from glm5_ascend.quant import stream
    from glm5_ascend.quant.source_release import SourceRelease

    source = Path(options.source)
    plan, texts, journal, waiting = prepared
    hashes, seen = options.hash_source, None
    if calibrated is None:
        release = None
        if options.delete_source:
            release = SourceRelease(source, waiting, journal, hash_first=hashes)
        stream.write_weights(
            source,
            plan,
            journal,
            options.workers,
            backend=options.backend,
            release=release,
            cpus=cpus,
        )
    else:
        seen = calibrated.write(resume=options.resume)
        texts = {**texts, **calibrated.files()}
    stream.finish(source, texts, journal, hash_source=hashes, calibration=seen)
    if calibrated is not None:
        calibrated.finish()


def _earlier(options: QuantizeOptions, recipe: Recipe) -> Journal | None:
    """The journal to continue; with ``--delete-source``, after a look at what may be deleted."""
    from glm5_ascend.quant.journal import read_journal
    from glm5_ascend.quant.source_release import require_own_directory

    if options.delete_source:
        if recipe.needs_calibration:
            raise ConfigError(
                f"recipe {recipe.name} needs a calibration, which reads the source several times",
                "leave out --delete-source",
            )
        require_own_directory(Path(options.source))
    return read_journal(Path(options.destination)) if options.resume else None


def _closed(options: QuantizeOptions, recipe: Recipe, journal: Journal, started: float) -> Summary:
    """Remove what is left of a source whose outputs are all complete."""
    from glm5_ascend.quant import destination as place
    from glm5_ascend.quant import stream
    from glm5_ascend.quant.identity import require_same_job

    job = {**journal.job, "recipe": recipe.as_dict(), "backend": options.backend.job}
    require_same_job(journal.directory, journal.job, job)
    with place.locked(journal.directory):
        stream.close(Path(options.source), journal)
    return Summary(
        journal.directory,
        recipe.name,
        recipe.rotate,
        sum(record.bytes for record in journal.done.values()),
        len(journal.done),
        len(journal.done),
        time.monotonic() - started,
        source_deleted=len(journal.released),
    )


def _require_whole(directory: Path) -> None:
    """Refuse a finished output that is not what its manifest says, and cannot be made again."""
    from glm5_ascend.quant.manifest import check_manifest

    for found in check_manifest(directory):
        raise CheckpointError(
            f"{directory} is complete and its source deleted, but {found.subject} differs from"
            f" the manifest: {found.detail or 'it is missing'}",
            "restore it from a copy, or download the source again and start anew with --overwrite",
        )


def _need(options: QuantizeOptions, waiting: Mapping[str, set[str]]) -> Need:
    from glm5_ascend.quant.destination import Need
    from glm5_ascend.quant.source_release import departures, peak_growth, shares_disk

    source = Path(options.source)
    if not options.delete_source or not shares_disk(source, Path(options.destination)):
        return Need(waiting)
    sizes = {name: (source / name).stat().st_size for name in waiting}

    def growth(left: Iterable[Shard]) -> int:
        shards = list(left)
        return peak_growth(departures(sizes, waiting, shards), shards, options.workers)

    return Need(waiting, growth)


def _calibrated(options: QuantizeOptions, plan: Plan, journal: Journal) -> CalibratedRun | None:
    if not plan.recipe.needs_calibration:
        return None
    from glm5_ascend.quant.calibration.calibrated_run import CalibratedRun

    return CalibratedRun(
        Path(options.source),
        plan,
        journal,
        options.calibration,
        options.workers,
        options.backend,
    )


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise PreflightError(
            "quantize needs torch, which is not installed", "pip install 'glm5-ascend[cpu]'"
        )


def _bytes_by_scheme(plan: Plan) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for shard in plan.shards:
        for step in shard.steps:
            sizes[step.scheme.value] += sum(map(tensor_bytes, step.stored.values()))
    return dict(sorted(sizes.items()))
