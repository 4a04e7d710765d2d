"""``glm5-ascend demo``: the small model from BF16 to a served W4A8 checkpoint, and a comparison."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glm5_ascend import console
from glm5_ascend.console import note
from glm5_ascend.demo_accuracy import Accuracy
from glm5_ascend.demo_engine import served, timed
from glm5_ascend.demo_http import Speed
from glm5_ascend.demo_questions import ask
from glm5_ascend.demo_table import Row, document, show
from glm5_ascend.errors import CheckpointError, Glm5Error, PreflightError

SMALL_MODEL = Path(__file__).parent / "assets" / "small-glm5"
MIN_BYTES = 32 << 10
# No further engine is started when it would end after this time; the whole demo then stays below
# six minutes.
BUDGET_S = 270.0
STEPS = 4


@dataclass(frozen=True, slots=True)
class Variant:
    """A checkpoint to compare; ``scheme`` None is the BF16 source itself."""

    name: str
    title: str
    scheme: Literal["w8a8", "w4a8"] | None
    rotate: bool

    @property
    def plain_title(self) -> str:
        return self.title.replace("\n", " ")


VARIANTS = (
    Variant("bf16", "BF16", None, False),
    Variant("w8a8", "W8A8", "w8a8", True),
    Variant("w4a8", "W4A8", "w4a8", True),
    Variant("w4a8-no-rotation", "W4A8\nunrotated", "w4a8", False),
)
SERVED = "w4a8"


def run(*, keep: Path | None, json: bool, model: Path = SMALL_MODEL) -> int:
    """Run the demo; returns 0.

    Args:
        keep: directory that keeps checkpoints and engine logs; None for a temporary one.
        json: one JSON document on stdout instead of the table.
        model: BF16 checkpoint with tokenizer.

    Raises:
        Glm5Error: the package holds no model, the engine cannot run here, or a step failed.
        KeyboardInterrupt: after every child process has ended.
    """
    started = time.monotonic()
    _preflight(model)
    with _workspace(keep) as work:
        note(f"1/{STEPS}  quantising {model.name} into {work}")
        checkpoints = quantise(model, work)
        with Accuracy(checkpoints, "bf16", MIN_BYTES) as accuracy:
            order = sorted(VARIANTS, key=lambda variant: variant.name != SERVED)
            speeds, answers = _engines(order, checkpoints, work, accuracy, started)
            note(f"4/{STEPS}  accuracy on held-out text, the same windows for every variant")
            metrics = accuracy.result()
        rows = [
            Row(v.name, v.title, weight_bytes(checkpoints[v.name]), metrics[v.name], speeds[v.name])
            for v in VARIANTS
        ]
        seconds = time.monotonic() - started
        if json:
            context = {**accuracy.context, "answers": answers, "seconds": round(seconds, 1)}
            console.emit(document(rows, model=model.name, **context), "", as_json=True)
        else:
            _print_table(rows, accuracy.context)
        note(f"done in {seconds:.0f} s" + (f"; checkpoints and logs are in {work}" if keep else ""))
    return 0


def _preflight(model: Path) -> None:
    """Fail before any work where the end cannot be reached."""
    import os

    from glm5_ascend.deploy import engine as engines

    if not (model / "config.json").is_file():
        raise CheckpointError(
            f"{model} does not hold the small model", "install the package again, with its data"
        )
    facts = engines.detect()
    if engines.choose(facts) is engines.Engine.NPU:
        raise PreflightError(
            "the demo compares variants on the CPU engine, and this environment serves on an NPU",
            "install 'glm5-ascend[cpu]' in another virtual environment and run the demo there",
        )
    engines.check(engines.Engine.CPU, facts, os.environ)


@contextmanager
def _workspace(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="glm5-ascend-demo-") as name:
            yield Path(name)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Glm5Error(
            f"cannot create {keep}: {error.strerror}", "give another directory to --keep"
        ) from error
    yield keep


def quantise(model: Path, work: Path) -> dict[str, Path]:
    """Write every quantised variant of ``model`` below ``work``; return all directories."""
    from glm5_ascend.quant.command import QuantizeOptions, run

    checkpoints = {}
    for variant in VARIANTS:
        if variant.scheme is None:
            checkpoints[variant.name] = model
            continue
        target = work / variant.name
        note(f"    {variant.plain_title}")
        run(QuantizeOptions(model, target, variant.scheme, variant.rotate, overwrite=True))
        checkpoints[variant.name] = target
    return checkpoints


def _engines(
    order: Sequence[Variant],
    checkpoints: dict[str, Path],
    work: Path,
    accuracy: Accuracy,
    started: float,
) -> tuple[dict[str, Speed | None], list[dict[str, str]]]:
    """Serve the variants one after another: questions to the first, timing for all."""
    speeds: dict[str, Speed | None] = {}
    answers: list[dict[str, str]] = []
    longest = 0.0
    for variant in order:
        begun = time.monotonic()
        if speeds and begun - started + longest > BUDGET_S:
            note(f"{variant.name}: engine not started, the demo would take over six minutes")
            speeds[variant.name] = None
            continue
        title = variant.title.replace("\n", " ")
        note(
            f"{'3' if speeds else '2'}/{STEPS}  serving {title}, which takes half a minute to start"
        )
        log = work / f"engine-{variant.name}.log"
        quantised = variant.scheme is not None
        with served(checkpoints[variant.name], quantised=quantised, log_path=log) as server:
            if not speeds:
                answers = ask(server.base_url, server.model)
            with accuracy.paused():
                speed = speeds[variant.name] = timed(server)
        note(
            f"    {speed.tokens_per_s:.1f} tokens/s, MTP accepted {speed.accepted}/{speed.drafted}"
        )
        longest = max(longest, time.monotonic() - begun)
    return speeds, answers


def weight_bytes(directory: Path) -> int:
    """Return the size of the weight files of a checkpoint."""
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def _print_table(rows: Sequence[Row], context: dict[str, object]) -> None:
    from rich.console import Console

    caption = (
        f"text: {context['text_bytes']:,} bytes of {context['text']}, {context['windows']} windows "
        f"of {context['window_tokens']} tokens (index_topk {context['index_topk']})"
    )
    show(Console(), rows, caption)
