"""Both checkpoints through the same windows, one layer of each at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from glm5_ascend.quant.evaluation.basis import find_basis, relative_error
from glm5_ascend.quant.evaluation.side import LayerTrace, Side
from glm5_ascend.quant.evaluation.tokens import TokenScores, score_tokens
from glm5_ascend.quant.evaluation.windows import EvalText
from glm5_ascend.simulator.offline_metrics import (
    Share,
    WindowScore,
    expert_overlap,
    topk_overlap,
)

Advance = Callable[[int], None]
_NONE = Share(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class LayerScore:
    """One layer, over all windows.

    Attributes:
        hidden, attention, mlp: squared relative error of the hidden states after the layer and of
            what each block adds, all quantisation so far included; None without a common basis.
        peaks, reference_peaks: mean of max|x| / rms(x) before attention and before the MLP.
        recall: per window, positions that the variant's indexer shares with the reference's.
        experts: per window, experts shared.
        c8: positions kept by an int8 indexer on the variant's own input.
        coverage: int64 [experts], tokens that the reference sends to each.
    """

    layer: int
    hidden: float | None
    attention: float | None
    mlp: float | None
    peaks: tuple[float, float]
    reference_peaks: tuple[float, float]
    recall: list[Share] = field(default_factory=list)
    experts: list[Share] = field(default_factory=list)
    c8: Share | None = None
    coverage: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Everything measured: per window, per token and per layer."""

    windows: list[WindowScore]
    tokens: TokenScores
    layers: list[LayerScore]
    has_basis: bool


def total_bytes(reference: Side, variant: Side) -> int:
    """What :func:`compare` reports as its work: stored bytes of all layers of both."""
    layers = range(reference.config.layer_count)
    return sum(side.nbytes(layer) for side in (reference, variant) for layer in layers)


def compare(reference: Side, variant: Side, text: EvalText, advance: Advance) -> Scores:
    """Run both on ``text``; ``advance`` is told the bytes of every layer that is done.

    The draft step of an MTP layer is fed by the true next tokens, as
    :func:`glm5_ascend.simulator.offline_metrics.run_window` does.
    """
    tokens = torch.stack([window.tokens for window in text.windows])
    count = len(text.windows)
    sides = (reference, variant)
    for side in sides:
        side.embed(tokens.flatten())
    basis = find_basis(*(side.store.raw("model.embed_tokens.weight") for side in sides))
    run = _Run(reference, variant, count, basis, advance)
    layers = [run.layer(index) for index in range(reference.config.num_hidden_layers)]
    finals = [side.final().view(count, -1, side.config.hidden_size) for side in sides]
    scores, greedy = _score(reference, variant, finals, tokens)
    accepted = [_NONE] * count
    if variant.config.num_nextn_predict_layers and reference.config.num_nextn_predict_layers:
        for side, final in zip(sides, finals, strict=True):
            side.start_draft(tokens[:, 1:].flatten(), final[:, :-1].flatten(0, 1), count)
        layers.append(run.layer(reference.config.num_hidden_layers))
        drafts = variant.draft_greedy().view(count, -1)
        accepted = [_same(draft, main[1:]) for draft, main in zip(drafts, greedy, strict=True)]
    windows = [
        WindowScore(
            predicted_bytes=window.predicted_bytes,
            bits=float(part.bits.sum()),
            reference_bits=float(part.reference_bits.sum()),
            kl=part.kl,
            top1=Share(float(part.same_top1.sum()), float(len(part.same_top1))),
            topk_recall=_pool([layer.recall[i] for layer in layers if layer.recall]),
            experts=_pool([layer.experts[i] for layer in layers if layer.experts]),
            acceptance=accepted[i],
        )
        for i, (window, part) in enumerate(zip(text.windows, scores, strict=True))
    ]
    return Scores(windows, TokenScores.join(scores), layers, basis is not None)


@dataclass(frozen=True, slots=True)
class _Run:
    reference: Side
    variant: Side
    windows: int
    basis: Tensor | None
    advance: Advance

    def layer(self, index: int) -> LayerScore:
        traces = []
        for side in (self.reference, self.variant):
            traces.append(side.run_layer(index, self.windows))
            self.advance(side.nbytes(index))
        base, other = traces
        score = LayerScore(
            layer=index,
            hidden=relative_error(self.reference.hidden, self.variant.hidden, self.basis),
            attention=relative_error(base.attention, other.attention, self.basis),
            mlp=relative_error(base.mlp, other.mlp, self.basis),
            peaks=other.peaks,
            reference_peaks=base.peaks,
            c8=other.c8,
        )
        return self._choices(score, base, other)

    def _choices(self, score: LayerScore, base: LayerTrace, other: LayerTrace) -> LayerScore:
        if base.chosen is not None and other.chosen is not None:
            topk = self.reference.config.index_topk
            pairs = zip(self._split(base.chosen), self._split(other.chosen), strict=True)
            score.recall.extend(topk_overlap(a, b, topk) for a, b in pairs)
        if base.expert_ids is None or other.expert_ids is None:
            return score
        pairs = zip(self._split(base.expert_ids), self._split(other.expert_ids), strict=True)
        score.experts.extend(expert_overlap(a, b) for a, b in pairs)
        experts = self.reference.config.n_routed_experts
        coverage = torch.bincount(base.expert_ids.flatten(), minlength=experts)
        return dataclasses.replace(score, coverage=coverage)

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return rows.chunk(self.windows)


def _score(
    reference: Side, variant: Side, finals: list[Tensor], tokens: Tensor
) -> tuple[list[TokenScores], Tensor]:
    """Scores of every window, and the variant's greedy token after each position, [W, T]."""
    rows, scores, greedy = reference.logit_rows, [], []
    for a, b, window in zip(*finals, tokens, strict=True):
        parts, best = [], []
        targets = torch.cat((window[1:], window[:1]))  # the last one is cut off below
        for x, y, wanted in zip(*(torch.split(t, rows) for t in (a, b, targets)), strict=True):
            logits = variant.logits(y)
            parts.append(score_tokens(reference.logits(x), logits, wanted))
            best.append(logits.argmax(-1))
        joined = TokenScores.join(parts)
        fields = TokenScores.__dataclass_fields__
        scores.append(TokenScores(**{name: getattr(joined, name)[:-1] for name in fields}))
        greedy.append(torch.cat(best))
    return scores, torch.stack(greedy)


def _same(draft: Tensor, main: Tensor) -> Share:
    return Share(float((draft == main).sum()), float(draft.numel()))


def _pool(shares: list[Share]) -> Share:
    return Share(sum(s.part for s in shares), sum(s.whole for s in shares))
