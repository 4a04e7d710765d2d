"""``glm5-ascend eval``: two checkpoints in, a report out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.config import Glm5Config
from glm5_ascend.console import progress
from glm5_ascend.errors import CheckpointError, Glm5Error
from glm5_ascend.files import make_folder, open_regular, present, refuse_unwritable
from glm5_ascend.inspection import PARTS, part_of
from glm5_ascend.quant.evaluation.html import as_html
from glm5_ascend.quant.evaluation.layerwise import compare, total_bytes
from glm5_ascend.quant.evaluation.matrices import matrix_errors
from glm5_ascend.quant.evaluation.report import Report
from glm5_ascend.quant.evaluation.side import Side
from glm5_ascend.quant.evaluation.windows import read_windows
from glm5_ascend.quant.files import refusals

# Whatever decides shapes, and what the forward pass computes.
_MUST_AGREE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "intermediate_size",
    "index_topk",
    "index_n_heads",
    "rope_theta",
)
_START = b"<!DOCTYPE html>"  # of every report


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """What the command line was asked for.

    Attributes:
        directory: the checkpoint to judge.
        against: the checkpoint it was made from, BF16 or F32.
        text: UTF-8 file; None for held-out packages of the running Python.
        tokens: at least so many tokens; None for 32 768 or all there are.
        html: file for the report; it must not exist unless ``overwrite``.
        max_kl: mean KL in nats above which the exit code is 1.
    """

    directory: Path
    against: Path
    text: Path | None = None
    tokens: int | None = None
    html: Path | None = None
    overwrite: bool = False
    max_kl: float | None = None


def run(options: EvalOptions) -> Report:
    """Evaluate a checkpoint; writes the HTML report if one is asked for.

    Raises:
        Glm5Error: see its subclasses.
    """
    started = time.monotonic()
    _check_output(options)
    with (
        Side(options.against) as reference,
        Side(options.directory, measure_c8=True) as variant,
    ):
        _require_same_model(reference.config, variant.config, options)
        text = read_windows(options.against, reference.config, options.text, options.tokens)
        with progress("evaluating", total_bytes(reference, variant)) as advance:
            scores = compare(reference, variant, text, advance)
        layers_with_c8 = [i for i in range(variant.config.layer_count) if variant.has_c8(i)]
    report = Report(
        directory=options.directory,
        against=options.against,
        text=text.as_dict(),
        scores=scores,
        matrices=matrix_errors(options.directory, options.against),
        part_bytes=_part_bytes(options.directory),
        layers_with_c8=layers_with_c8,
        max_kl=options.max_kl,
        seconds=time.monotonic() - started,
    )
    if options.html is not None:
        _write(options.html, as_html(report))
    return report


def _check_output(options: EvalOptions) -> None:
    """Refuse before hours of work what could not be written after them."""
    file = options.html
    if file is None:
        return
    if present(file) and not options.overwrite:
        raise Glm5Error(f"{file} exists", "name another file, or give --overwrite")
    if present(file) and not _is_report(file):
        raise Glm5Error(f"{file} exists and is no HTML file", "name another file")
    with refusals(f"write {file}", "name a file in a folder of yours"):
        refuse_unwritable(_draft(file))


def _is_report(file: Path) -> bool:
    """Whether ``--overwrite`` may replace it: no device, no folder, no file of a checkpoint."""
    if not file.is_file():
        return False
    with open_regular(file) as stream:
        return stream.read(len(_START)) == _START


def _write(file: Path, text: str) -> None:
    """All or nothing: a browser never sees half a report."""
    with refusals(f"write {file}", "name a file in a folder of yours"):
        make_folder(file)
        draft = _draft(file)
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)


def _draft(file: Path) -> Path:
    return file.with_name(f".{file.name}.part")


def _part_bytes(directory: Path) -> dict[str, int]:
    sizes = dict.fromkeys(PARTS, 0)
    with CheckpointReader(directory) as reader:
        for name in reader.names():
            sizes[part_of(reader.config, name)] += reader.nbytes(name)
    return {part: size for part, size in sizes.items() if size}


def _require_same_model(a: Glm5Config, b: Glm5Config, options: EvalOptions) -> None:
    for name in _MUST_AGREE:
        if getattr(a, name) != getattr(b, name):
            raise CheckpointError(
                f"{options.directory} has {name} {getattr(b, name)}, {options.against} has"
                f" {getattr(a, name)}",
                "give the checkpoint that DIR was made from as --against",
            )
