"""``glm5-ascend quantize``: options in, a checkpoint and a summary out."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from glm5_ascend.checkpoint import tensor_bytes
from glm5_ascend.console import format_bytes
from glm5_ascend.errors import Glm5Error, PreflightError
from glm5_ascend.quant.plan import Plan
from glm5_ascend.quant.recipe import Choices, DtypeName, MtpName, SchemeName


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """What the command line was asked for.

    Attributes:
        source: Hugging Face checkpoint, BF16, F32 or FP8.
        destination: directory to write; absent or empty unless resume or overwrite is given.
        scheme: routed experts and linears: int4 + int8, int8 + int8, or no quantisation.
        rotate: fuse norms and rotate (QuaRot).
        dtype: dtype of the tensors that stay float.
        mtp: the MTP layer's linears and experts in int8, or float.
        workers: processes.
        resume: continue an interrupted run of the same job.
        overwrite: replace the output of an earlier run.
        shard_bytes: limit of one output file; None decides from the size of the model.
        hash_source: put the SHA-256 of each source file into the manifest, which reads it again.
    """

    source: Path
    destination: Path
    scheme: SchemeName = "w4a8"
    rotate: bool = True
    dtype: DtypeName = "bfloat16"
    mtp: MtpName = "w8"
    workers: int = 1
    resume: bool = False
    overwrite: bool = False
    shard_bytes: int | None = None
    hash_source: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a run; sizes in bytes of tensor data."""

    destination: Path
    scheme: SchemeName
    rotated: bool
    output_bytes: int
    files: int
    files_resumed: int
    seconds: float
    bytes_by_scheme: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return the summary as one JSON object."""
        return {
            "schema": 1,
            "destination": str(self.destination),
            "scheme": self.scheme,
            "rotated": self.rotated,
            "output_bytes": self.output_bytes,
            "files": self.files,
            "files_resumed": self.files_resumed,
            "seconds": round(self.seconds, 3),
            "bytes_by_scheme": self.bytes_by_scheme,
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
    from glm5_ascend.quant import stream

    started = time.monotonic()
    source, destination = Path(options.source), Path(options.destination)
    if options.resume and options.overwrite:
        raise Glm5Error("--resume and --overwrite exclude each other", "give one of them")
    place.require_separate(source, destination)
    choices = Choices(options.scheme, options.rotate, options.dtype, options.mtp)
    plan, texts, journal = stream.prepare(source, choices, options.shard_bytes)
    journal.directory = destination
    ready = place.destination(journal, plan, resume=options.resume, overwrite=options.overwrite)
    try:
        with ready:
            resumed = len(journal.done)
            stream.write_weights(source, plan, journal, options.workers)
            stream.finish(source, texts, journal, hash_source=options.hash_source)
    except KeyboardInterrupt as error:
        done = f"{len(journal.done)} of {len(plan.shards)} files are complete"
        raise KeyboardInterrupt(f"{done}; the same command with --resume continues") from error
    return Summary(
        destination,
        options.scheme,
        options.rotate,
        plan.nbytes,
        len(plan.shards),
        resumed,
        time.monotonic() - started,
        _bytes_by_scheme(plan),
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
