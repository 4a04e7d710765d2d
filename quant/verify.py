"""``glm5-ascend verify``: headers always, values and a comparison with the source when asked."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from glm5_ascend.ascend_schemes import AUXILIARY, ROTATION
from glm5_ascend.config import Glm5Config
from glm5_ascend.console import progress
from glm5_ascend.engine_releases import Release
from glm5_ascend.errors import PreflightError
from glm5_ascend.inspection import PARTS, part_of
from glm5_ascend.quant.manifest import check_manifest
from glm5_ascend.verify.check import examine
from glm5_ascend.verify.findings import judge
from glm5_ascend.verify.folder import Folder
from glm5_ascend.verify.report import Report
from glm5_ascend.verify.sglang import ENGINE as SGLANG
from glm5_ascend.verify.sglang import judge_for_sglang

_SEED = 5
_DEFAULT_SAMPLE = 256
# Reading values relies on the shapes and dtypes that these are about.
_HEADER_RULES = frozenset(
    (
        "scale-missing",
        "scale-bias-missing",
        "static-missing",
        "shape",
        "dtype",
        "scale-bias-columns",
        "scale-axis",
        "int4-unpacked",
        "int8-in-float",
        "float-in-int8",
        "tensor-twice",
    )
)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What the command line was asked for.

    Attributes:
        directory: the checkpoint.
        source: what it was made from; None compares nothing.
        release: the engine; None judges for all.
        sglang: judge for SGLang instead.
        manifest: compare files with the manifest's checksums.
        sample: read the values of so many weights, drawn with a fixed seed from all parts.
        full: read all values.
    """

    directory: Path
    source: Path | None = None
    release: Release | None = None
    manifest: bool = False
    sample: int | None = None
    full: bool = False
    sglang: bool = False


def run(options: VerifyOptions) -> Report:
    """Check a checkpoint.

    Raises:
        Glm5Error: the directory or the source cannot be read at all.
    """
    folder, config, schemes = examine(options.directory)
    looked = ["headers"]
    if options.manifest:
        folder.conditions += check_manifest(options.directory)
        looked.append("checksums")
    errors: dict[str, dict[str, float]] = {}
    wants_values = options.full or options.sample is not None or options.source is not None
    if wants_values and config is not None:
        if find_spec("torch") is None:
            raise PreflightError(
                "reading values needs torch, which is not installed",
                "pip install 'glm5-ascend[cpu]'",
            )
        names = _chosen(folder, config, schemes, options)
        errors = _read_values(folder, config, schemes, names, options.source)
        looked.append(f"values of {len(names):,} of {len(_weights(folder, schemes)):,} weights")
    return Report(
        directory=options.directory,
        release=options.release,
        findings=(
            judge_for_sglang(folder, schemes)
            if options.sglang
            else judge(folder.conditions, options.release)
        ),
        tensors=len(folder.tensors),
        looked_at=" and ".join(looked),
        errors=errors,
        engine=SGLANG if options.sglang else None,
    )


def _weights(folder: Folder, schemes: dict[str, str | None]) -> list[str]:
    """Weights whose headers are in order: there is nothing to say about the values of others."""
    broken = {
        condition.subject.rpartition(".")[0]
        for condition in folder.conditions
        if condition.rule in _HEADER_RULES
    }
    names = schemes or dict.fromkeys(folder.tensors)
    rotation = [ROTATION] if ROTATION in folder.tensors else []
    return [
        name
        for name in (*names, *rotation)
        if name in folder.tensors and name.rpartition(".")[0] not in broken
    ]


def _chosen(
    folder: Folder, config: Glm5Config, schemes: dict[str, str | None], options: VerifyOptions
) -> list[str]:
    names = _weights(folder, schemes)
    count = options.sample or (None if options.full else _DEFAULT_SAMPLE)
    if count is None or count >= len(names):
        return names
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for name in names:
        parts[part_of(config, name)].append(name)
    draw = random.Random(_SEED)
    for members in parts.values():
        draw.shuffle(members)
    chosen: list[str] = []
    while len(chosen) < count:
        for members in parts.values():
            if members and len(chosen) < count:
                chosen.append(members.pop())
    order = {name: position for position, name in enumerate(names)}
    return sorted(chosen, key=order.__getitem__)


def _read_values(
    folder: Folder,
    config: Glm5Config,
    schemes: dict[str, str | None],
    names: Iterable[str],
    source: Path | None,
) -> dict[str, dict[str, float]]:
    from glm5_ascend.checkpoint import CheckpointReader
    from glm5_ascend.quant.stream import refuse_quantised
    from glm5_ascend.quant.verify_source import Comparison
    from glm5_ascend.quant.verify_values import Values, check_values

    if source is not None:
        refuse_quantised(source)
    values = Values(folder)
    names = list(names)
    kinds = dict(schemes) or dict.fromkeys(names, "FLOAT")
    kinds[ROTATION] = "FLOAT"
    measured: dict[str, list[float]] = {}
    reader = None if source is None else CheckpointReader(source)
    comparison = None
    if reader is not None:
        comparison = Comparison.start(reader, config, values, kinds)
        if comparison is None:
            folder.note("source-unlike", "model.embed_tokens.weight", f"(source {source})")
    sizes = {name: _nbytes(folder, name) for name in names}
    with progress("reading values", sum(sizes.values())) as advance:
        for name in names:
            found = check_values(values, config, kinds, name)
            folder.conditions += found
            if comparison is not None and not found:
                _compare(folder, config, comparison, name, measured)
            advance(sizes[name])
    if reader is not None:
        reader.close()
    return {
        part: {
            "tensors": float(len(rows)),
            "mean": sum(rows) / len(rows),
            "worst": max(rows),
        }
        for part, rows in measured.items()
    }


def _compare(
    folder: Folder,
    config: Glm5Config,
    comparison: object,
    name: str,
    measured: dict[str, list[float]],
) -> None:
    from glm5_ascend.quant.verify_source import Comparison

    if not isinstance(comparison, Comparison):
        raise TypeError("comparison")
    error = comparison.relative_error(name)
    if error is None:
        return
    scheme = comparison.schemes.get(name) or "FLOAT"
    measured.setdefault(f"{part_of(config, name)} {scheme}", []).append(error)
    condition = comparison.judge(name, error)
    if condition is not None:
        folder.conditions.append(condition)


def _nbytes(folder: Folder, name: str) -> int:
    module = name.removesuffix("weight")
    parts = [name, *(module + suffix for suffix in AUXILIARY)]
    return sum(folder.tensors[part].nbytes for part in parts if part in folder.tensors)
