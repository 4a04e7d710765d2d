"""What an evaluation found, for programs and for people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from glm5_ascend.console import duration, format_bytes, one_line
from glm5_ascend.errors import ExitCode
from glm5_ascend.inspection import PARTS
from glm5_ascend.quant.evaluation.layerwise import LayerScore, Scores
from glm5_ascend.quant.evaluation.matrices import Errors
from glm5_ascend.quant.evaluation.tokens import tail
from glm5_ascend.simulator.evaluate import Intervals, Metrics, bootstrap, summarise
from glm5_ascend.simulator.offline_metrics import Share

SCHEMA = 1
# A quantised model that has lost this much is another model: one that answers garbage.
GARBLED_KL = 1.0
# Share of the positions that an int8 indexer must keep; below, a layer is proposed for exclusion.
C8_RECALL = 0.98

LABELS = {
    "bits_per_byte": "bits per byte",
    "bits_change": "change of bits",
    "kl_mean": "KL, mean",
    "kl_p99": "KL, 99th percentile",
    "top1_agreement": "top-1 agreement",
    "topk_recall": "index recall",
    "expert_agreement": "expert agreement",
    "mtp_acceptance": "MTP acceptance",
}
_SHARES = ("bits_change", "top1_agreement", "topk_recall", "expert_agreement", "mtp_acceptance")


@dataclass(frozen=True)
class Report:
    """The result of :func:`glm5_ascend.quant.evaluation.command.run`.

    Attributes:
        directory, against: the two checkpoints.
        text: the evaluation text's description.
        scores: what the forward passes gave.
        matrices: error of the stored matrices; None where they cannot be un-rotated.
        part_bytes: stored bytes by part of the model (keys of ``inspection.PARTS``).
        layers_with_c8: layers whose description asks for an int8 indexer.
        max_kl: limit of the mean KL, None for no limit.
        seconds: how long it took.
    """

    directory: Path
    against: Path
    text: dict[str, object]
    scores: Scores
    matrices: Errors | None
    part_bytes: dict[str, int]
    layers_with_c8: list[int]
    max_kl: float | None
    seconds: float

    @cached_property
    def metrics(self) -> Metrics:
        """Pooled over all windows."""
        return summarise(self.scores.windows)

    @cached_property
    def intervals(self) -> Intervals:
        """95 % bootstrap intervals of the metrics over windows."""
        return bootstrap(self.scores.windows)

    @cached_property
    def tail(self) -> dict[str, float]:
        """Figures of the distribution's tail."""
        return tail(self.scores.tokens)

    @property
    def c8_exclude(self) -> list[int]:
        """Layers where an int8 indexer loses more than 2 % of the positions."""
        return [layer.layer for layer in self.scores.layers if (ratio(layer.c8) or 1.0) < C8_RECALL]

    @property
    def findings(self) -> list[str]:
        """What should stop somebody from serving this; empty when nothing does."""
        found = []
        kl = self.metrics.kl_mean
        if not kl < GARBLED_KL:
            found.append(
                f"garbled: a KL of {kl:.3g} nats is not that of a quantised copy; see which"
                " layer's error jumps"
            )
        if self.max_kl is not None and not kl <= self.max_kl:
            found.append(f"KL {kl:.4g} is above --max-kl {self.max_kl:g}")
        return found

    @property
    def exit_code(self) -> ExitCode:
        """1 with a finding."""
        return ExitCode.INPUT if self.findings else ExitCode.DONE

    def as_dict(self) -> dict[str, object]:
        """JSON form, schema 1: KL and entropies in nats, shares in 0…1, errors squared relative."""
        return {
            "schema": SCHEMA,
            "directory": str(self.directory),
            "against": str(self.against),
            "source": "measured on a CPU, no NPU",
            "text": self.text,
            "metrics": {
                name: {"value": _number(value), "interval": [_number(v) for v in interval]}
                for (name, value), interval in zip(
                    self.metrics.as_dict().items(), self.intervals.values(), strict=True
                )
            },
            "tail": {name: _number(value) for name, value in self.tail.items()},
            "layers": [_layer(layer) for layer in self.scores.layers],
            "matrices": self.matrices
            and {m: {str(i): e for i, e in row.items()} for m, row in self.matrices.items()},
            "part_bytes": self.part_bytes,
            "c8": {
                "layers": self.layers_with_c8,
                "recall_limit": C8_RECALL,
                "exclude": self.c8_exclude,
            },
            "findings": self.findings,
            "seconds": round(self.seconds, 1),
        }

    def as_text(self) -> str:
        """A few lines for people."""
        lines = [
            one_line(f"{self.directory} against {self.against}"),
            f"  {self.text['tokens']:,} tokens in {self.text['windows']} windows of"
            f" {one_line(str(self.text['name']))}; {duration(self.seconds)}",
        ]
        lines += [f"  {label:<22}{shown}" for label, shown in self.rows()]
        worst = self.worst_layer()
        if worst is not None:
            lines.append(
                f"  largest step of error in layer {worst[0]}: {worst[1]:.2e} of the hidden state"
            )
        if self.c8_exclude:
            lines.append(
                f"  int8 indexer keeps less than {100 * C8_RECALL:.0f} % in layers"
                f" {', '.join(map(str, self.c8_exclude))}"
            )
        total = sum(self.part_bytes.values())
        lines.append(f"  size {format_bytes(total)}, most of it {_largest(self.part_bytes)}")
        return "\n".join(lines + [f"  FOUND: {finding}" for finding in self.findings])

    def rows(self) -> list[tuple[str, str]]:
        """Label and value with its interval, for every metric and figure of the tail."""
        found = []
        for name, value in self.metrics.as_dict().items():
            low, high = self.intervals[name]
            shown = show(name, value)
            if low < high:
                shown += f"  [{show(name, low)}, {show(name, high)}]"
            found.append((LABELS[name], shown))
        figures = self.tail
        found.append(("KL, 99.9 % and most", f"{figures['kl_p999']:.4f}, {figures['kl_max']:.4f}"))
        found.append(
            ("entropy", f"{figures['entropy']:.4f}, was {figures['reference_entropy']:.4f}")
        )
        outside = 100 * figures["outside_nucleus"], 100 * figures["reference_outside_nucleus"]
        found.append(("outside the nucleus", f"{outside[0]:.3f} %, was {outside[1]:.3f} %"))
        return found

    def worst_layer(self) -> tuple[int, float] | None:
        """Layer after which the hidden states' error grew most, and by how much."""
        errors = [(s.layer, s.hidden) for s in self.scores.layers if s.hidden is not None]
        before = 0.0
        steps = []
        for layer, error in errors:
            steps.append((layer, error - before))
            before = error
        return max(steps, key=lambda step: step[1], default=None)


def ratio(share: Share | None) -> float | None:
    """The share in 0…1; None where nothing was counted."""
    return None if share is None or not share.whole else share.part / share.whole


def pooled(shares: list[Share]) -> float | None:
    """Of all windows."""
    return ratio(Share(sum(s.part for s in shares), sum(s.whole for s in shares)))


def show(name: str, value: float) -> str:
    """A metric as people read it."""
    if math.isnan(value):
        return "–"
    if name in _SHARES:
        return f"{100 * value:+.2f} %" if name == "bits_change" else f"{100 * value:.2f} %"
    return f"{value:.5f}"


def _layer(score: LayerScore) -> dict[str, object]:
    return {
        "layer": score.layer,
        "hidden_error": score.hidden,
        "attention_error": score.attention,
        "mlp_error": score.mlp,
        "input_peaks": list(score.peaks),
        "reference_input_peaks": list(score.reference_peaks),
        "index_recall": pooled(score.recall),
        "expert_agreement": pooled(score.experts),
        "c8_recall": ratio(score.c8),
        "expert_tokens": None if score.coverage is None else score.coverage.tolist(),
    }


def _largest(parts: dict[str, int]) -> str:
    name = max(parts, key=lambda part: parts[part])
    return f"{PARTS[name]} ({100 * parts[name] / sum(parts.values()):.0f} %)"


def _number(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None
