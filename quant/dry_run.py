"""``glm5-ascend quantize --dry-run``: the plan of a run, and what it will cost; touches nothing.

Sizes are those of the plan that a real run executes. Time and memory are modelled: rates come from
a few matrices of the model's own shapes converted here, or from the user.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from glm5_ascend.checkpoint import CheckpointReader, expected_tensors, tensor_bytes
from glm5_ascend.config import Glm5Config
from glm5_ascend.console import format_bytes
from glm5_ascend.errors import ExitCode, PreflightError
from glm5_ascend.inspection import PARTS, part_of
from glm5_ascend.quant.command import QuantizeOptions
from glm5_ascend.quant.dry_run_calibration import PRODUCTS, Calibrating, calibrating
from glm5_ascend.quant.plan import Plan, make_plan
from glm5_ascend.quant.recipe import Action, Recipe, Step
from glm5_ascend.quant.source_release import (
    Departure,
    consumers,
    data_bytes,
    departures,
    peak_growth,
    require_own_directory,
    shares_disk,
)

# Per worker: interpreter, torch, and the mapped headers.
_BASE_BYTES = 400 << 20
_SPARE_BYTES = 16 << 20
_READ_BACKS = 2
# A matrix in float64 twice (before and after a rotation), in float32, and its codes.
_BYTES_PER_WEIGHT = 8 + 8 + 4 + 1
# Pieces of rows of a matrix that is not rotated on its rows: float64 twice.
_PIECE_BYTES = 2 * 8 * (1 << 25)
RATES = ("int4", "int8", "float", "hash", "read", "write", *PRODUCTS)
# Neither is measured: a dry run writes nothing, and what it reads may be in the cache.
_DISK = 1e9


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would write, and what it would take.

    Attributes:
        options: of the run.
        recipe: of the run.
        family: of the model.
        source_tensors: in the source.
        source_bytes: of its tensors.
        parts: source and output bytes of each part.
        schemes: output bytes by scheme.
        files: of weights.
        output_tensors: in them.
        output_bytes: of tensor data.
        largest_file: in bytes.
        free_bytes: of the destination's file system.
        worker_bytes: memory of one worker at its peak, modelled.
        rates: weights per second and core by scheme, bytes per second of hashing, reading, writing.
        sources: of each rate: measured, given or assumed.
        core_seconds: of conversion and hashing, modelled.
        disk_seconds: of reading and writing alone, modelled.
        headers_only: files of the source that hold no data.
        departures: with ``--delete-source``, which source file goes when.
        growth: bytes by which the outputs exceed what has gone, at most; None where what goes
            makes no room for them.
        calibration: what calibrating adds; None without.
    """

    options: QuantizeOptions
    recipe: Recipe
    family: str
    source_tensors: int
    source_bytes: int
    parts: dict[str, tuple[int, int]]
    schemes: dict[str, int]
    files: int
    output_tensors: int
    output_bytes: int
    largest_file: int
    free_bytes: int
    worker_bytes: int
    rates: dict[str, float]
    sources: dict[str, str]
    core_seconds: float
    disk_seconds: float
    headers_only: int
    departures: tuple[Departure, ...] = ()
    growth: int | None = None
    calibration: Calibrating | None = None

    @property
    def needed_bytes(self) -> int:
        """Disk that a real run asks for."""
        wanted = self.output_bytes if self.growth is None else self.growth
        if self.calibration is not None and shares_disk(
            self.calibration.directory, self.options.destination
        ):
            wanted += self.calibration.disk_bytes
        return max(0, wanted + _SPARE_BYTES)

    @property
    def exit_code(self) -> ExitCode:
        """3 where the disk is too small."""
        return ExitCode.DOES_NOT_FIT if self.needed_bytes > self.free_bytes else ExitCode.DONE

    @property
    def seconds(self) -> float:
        """With all workers: the slower of arithmetic and disk, which overlap."""
        return max(self.core_seconds / self.options.workers, self.disk_seconds)

    def as_dict(self) -> dict[str, object]:
        """JSON form; what is modelled says so in its key."""
        return {
            "schema": 1,
            "source": str(self.options.source),
            "destination": str(self.options.destination),
            "family": self.family,
            "scheme": self.recipe.name,
            "rotated": self.recipe.rotate,
            "engine": None if self.options.release is None else str(self.options.release),
            "workers": self.options.workers,
            "source_tensors": self.source_tensors,
            "source_bytes": self.source_bytes,
            "source_files_without_data": self.headers_only,
            "parts": {
                part: {"source_bytes": before, "output_bytes": after}
                for part, (before, after) in self.parts.items()
            },
            "bytes_by_scheme": self.schemes,
            "files": self.files,
            "output_tensors": self.output_tensors,
            "output_bytes": self.output_bytes,
            "largest_file_bytes": self.largest_file,
            "disk_needed_bytes": self.needed_bytes,
            "disk_free_bytes": self.free_bytes,
            "modelled_bytes_per_worker": self.worker_bytes,
            "rates": self.rates,
            "rate_sources": self.sources,
            "modelled_core_seconds": round(self.core_seconds, 1),
            "modelled_disk_seconds": round(self.disk_seconds, 1),
            "modelled_seconds": round(self.seconds, 1),
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
            "source_files_deleted": [asdict(item) for item in self.departures],
        }

    def as_text(self) -> str:
        """The same for people."""
        options = self.options
        turned = "rotated" if self.recipe.rotate else "not rotated"
        lines = [
            f"{options.source} -> {options.destination}: {self.family}, {self.recipe.name},"
            f" {turned}" + ("" if options.release is None else f", for {options.release}"),
            f"  {'part':<20}{'source':>10}{'output':>12}",
        ]
        for part, label in PARTS.items():
            if part in self.parts:
                before, after = self.parts[part]
                lines.append(f"  {label:<20}{format_bytes(before):>10}{format_bytes(after):>12}")
        schemes = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.schemes.items())
        lines += [
            f"  {'all':<20}{format_bytes(self.source_bytes):>10}"
            f"{format_bytes(self.output_bytes):>12}   {schemes}",
            f"  tensors   {self.source_tensors:,} in, {self.output_tensors:,} out, in"
            f" {self.files:,} files of at most {format_bytes(self.largest_file)}",
            f"  disk      {format_bytes(self.needed_bytes)} needed,"
            f" {format_bytes(self.free_bytes)} free"
            + ("" if self.exit_code is ExitCode.DONE else ": does not fit"),
            f"  memory    {format_bytes(self.worker_bytes)} per worker at its peak, modelled",
            f"  time      {_hours(self.core_seconds)} of one core,"
            f" {_hours(self.core_seconds / options.workers)} with {options.workers} workers;"
            f" disk alone {_hours(self.disk_seconds)}; modelled",
            "  rates     " + ", ".join(self._rate(name) for name in RATES if name in self.rates),
        ]
        if self.calibration is not None:
            cost = self.calibration
            lines.append(
                f"  calibration {_hours(cost.core_seconds)} of that for {cost.tokens:,} tokens at"
                f" most, and {format_bytes(cost.disk_bytes)} in {cost.directory}; modelled"
            )
        if self.headers_only:
            lines.append(f"  {self.headers_only:,} files of the source hold a header and no data")
        return "\n".join(lines + self._going())

    def _going(self) -> list[str]:
        """When source files go: one line for all that go after the same output file."""
        lines = []
        for after, group in groupby(self.departures, key=lambda item: item.after):
            items = list(group)
            names = items[0].file + (f" to {items[-1].file}" if len(items) > 1 else "")
            size = format_bytes(sum(item.nbytes for item in items))
            lines.append(f"  deletes   after output file {after}: {names}, {size}")
        return lines

    def _rate(self, name: str) -> str:
        rate, source = self.rates[name], self.sources[name]
        if name in ("hash", "read", "write"):
            return f"{name} {format_bytes(rate)}/s {source}"
        if name in PRODUCTS:
            return f"{name} {rate / 1e9:.0f} G operations/s {source}"
        return f"{name} {rate / 1e6:.1f} M weights/s {source}"


def run(options: QuantizeOptions, given: Mapping[str, float]) -> DryRun:
    """Plan a run and model its cost; no file is written outside the system's temporary directory.

    Args:
        options: of the run that is asked about.
        given: rates to use instead of measured ones, keys of :data:`RATES`.

    Raises:
        Glm5Error: as the real run would, before it writes anything.
    """
    if find_spec("torch") is None:
        raise PreflightError(
            "quantize needs torch, which is not installed", "pip install 'glm5-ascend[cpu]'"
        )
    from glm5_ascend.quant import destination as place
    from glm5_ascend.quant.description import companions, text_files
    from glm5_ascend.quant.dry_run_rates import measure
    from glm5_ascend.quant.planned import require_loadable
    from glm5_ascend.quant.rotation import rotations
    from glm5_ascend.quant.stream import refuse_quantised

    place.require_separate(options.source, options.destination)
    refuse_quantised(options.source)
    recipe = options.wanted()
    with CheckpointReader(options.source, data_optional=True) as reader:
        config = reader.config
        reader.check_inventory(expected_tensors(config))
        sizes = {name: reader.nbytes(name) for name in reader.names()}
        empty = sum(_holds_nothing(file) for file in reader.files())
        plan = make_plan(config, recipe, options.shard_bytes)
        going, growth = _departures(options, reader, plan)
    if recipe.rotate:
        rotations(config)
    texts = text_files(options.source, plan, companions(options.source))
    require_loadable(plan, texts, options.release)
    rates, sources = measure(config, plan, given, options.backend)
    for name in ("read", "write"):
        rates[name], sources[name] = given.get(name, _DISK), "given" if name in given else "assumed"
    added = calibrating(options, config, plan, given, (rates, sources))
    output = plan.nbytes
    return DryRun(
        options=options,
        recipe=recipe,
        family=config.family,
        source_tensors=len(sizes),
        source_bytes=sum(sizes.values()),
        parts=_parts(config, plan, sizes),
        schemes=_by_scheme(plan),
        files=len(plan.shards),
        output_tensors=sum(len(shard.tensors()) for shard in plan.shards),
        output_bytes=output,
        largest_file=max(shard.nbytes for shard in plan.shards),
        free_bytes=_free(options.destination),
        worker_bytes=_worker_bytes(plan, kernels=options.backend.name == "cpu"),
        rates=rates,
        sources=sources,
        core_seconds=_core_seconds(plan, rates) + (0.0 if added is None else added.core_seconds),
        disk_seconds=sum(sizes.values()) / rates["read"] + output / rates["write"],
        headers_only=empty,
        departures=going,
        growth=growth,
        calibration=added,
    )


def _departures(
    options: QuantizeOptions, reader: CheckpointReader, plan: Plan
) -> tuple[tuple[Departure, ...], int | None]:
    if not options.delete_source:
        return (), None
    require_own_directory(options.source)
    going = departures(data_bytes(reader), consumers(reader, plan), plan.shards)
    if not shares_disk(options.source, options.destination):
        return tuple(going), None
    return tuple(going), peak_growth(going, plan.shards, options.workers)


def rate_of(step: Step) -> str:
    """Which rate a step runs at."""
    kinds = {"W4A8_DYNAMIC": "int4", "FLOAT": "float"}
    return kinds.get(step.scheme.value, "int8")


def _core_seconds(plan: Plan, rates: Mapping[str, float]) -> float:
    weights: Counter[str] = Counter()
    for shard in plan.shards:
        for step in shard.steps:
            if step.action is Action.MATRIX and len(step.shape) == 2:
                weights[rate_of(step)] += step.shape[0] * step.shape[1]
    hashing = (1 + _READ_BACKS) * plan.nbytes / rates["hash"]
    return hashing + sum(count / rates[name] for name, count in weights.items())


def _worker_bytes(plan: Plan, *, kernels: bool) -> int:
    """The largest step's working set, and what a worker holds anyway."""
    size = _kernel_bytes if kernels else _step_bytes
    return _BASE_BYTES + max(size(step) for shard in plan.shards for step in shard.steps)


def _kernel_bytes(step: Step) -> int:
    """Output, and the whole matrix in float32 where rows are rotated into each other."""
    stored = sum(map(tensor_bytes, step.stored.values()))
    if step.action is Action.RECYCLED:
        return stored + _BYTES_PER_WEIGHT * step.shape[0] * step.shape[1]
    return stored + (4 * step.shape[0] * step.shape[1] if step.fold.rows is not None else 0)


def _step_bytes(step: Step) -> int:
    count = 1
    for size in step.shape:
        count *= size
    stored = sum(map(tensor_bytes, step.stored.values()))
    if step.fold.rows is None and rate_of(step) == "float":
        return stored + min(_PIECE_BYTES, 2 * 8 * count)
    return stored + _BYTES_PER_WEIGHT * count


def _parts(config: Glm5Config, plan: Plan, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for name, size in sizes.items():
        before[part_of(config, name)] += size
    for shard in plan.shards:
        for name, spec in shard.tensors().items():
            after[part_of(config, name)] += tensor_bytes(spec)
    return {part: (before[part], after[part]) for part in PARTS if before[part] or after[part]}


def _by_scheme(plan: Plan) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for shard in plan.shards:
        for step in shard.steps:
            sizes[step.scheme.value] += sum(map(tensor_bytes, step.stored.values()))
    return dict(sizes.most_common())


def _holds_nothing(file: Path) -> bool:
    with open(file, "rb") as stream:
        return file.stat().st_size == 8 + int.from_bytes(stream.read(8), "little")


def _free(directory: Path) -> int:
    existing = directory.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _hours(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
