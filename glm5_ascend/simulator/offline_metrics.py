"""Comparison of one variant with the reference on one window, and sums over windows.

Definitions, with p the reference's and q the variant's distribution after the same tokens:
bits per byte = Σ −log2 q(next token) / bytes of those tokens; KL = Σ p ln(p / q) per predicted
token, in nats; top-1 agreement = share of predicted tokens with the same argmax; top-k recall =
mean |A ∩ B| / |A| of attended positions, A the reference's, over rows that see more than
``index_topk`` positions and all layers with an indexer (MTP included); expert agreement = mean
|A ∩ B| / top_k over rows and MoE layers; MTP acceptance = share of rows where the k = 1 draft's
argmax is the main model's argmax one position later (greedy, teacher-forced).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.simulator.model import Forward, OfflineModel
from glm5_ascend.simulator.offline_text import Window


@dataclass(frozen=True, slots=True)
class Pass:
    """Main forward and, if the model has an MTP layer, its first draft step over one window."""

    main: Forward
    draft: Forward | None


@dataclass(frozen=True, slots=True)
class Share:
    """A ratio kept as numerator and denominator, so that windows can be pooled."""

    part: float
    whole: float


@dataclass(frozen=True, slots=True)
class WindowScore:
    """Everything that one window says about one variant; ``kl`` is F64 [length − 1]."""

    predicted_bytes: int
    bits: float
    reference_bits: float
    kl: Tensor
    top1: Share
    topk_recall: Share
    experts: Share
    acceptance: Share


def run_window(model: OfflineModel, window: Window) -> Pass:
    """Forward one window, with the draft step fed by the true next tokens."""
    main = model.forward(window.tokens)
    if model.mtp_layer is None:
        return Pass(main, None)
    return Pass(main, model.mtp(window.tokens[1:], main.hidden[:-1]))


def score_window(variant: Pass, reference: Pass, window: Window, index_topk: int) -> WindowScore:
    """Compare ``variant`` with ``reference`` on the same window."""
    targets = window.tokens[1:]
    log_q = variant.main.logits[:-1].double().log_softmax(-1)
    log_p = reference.main.logits[:-1].double().log_softmax(-1)
    same = log_q.argmax(-1) == log_p.argmax(-1)
    return WindowScore(
        predicted_bytes=window.predicted_bytes,
        bits=_bits(log_q, targets),
        reference_bits=_bits(log_p, targets),
        kl=(log_p.exp() * (log_p - log_q)).sum(-1),
        top1=Share(float(same.sum()), float(same.numel())),
        topk_recall=_pool(
            [topk_overlap(a, b, index_topk) for a, b in _paired(reference, variant, "topk_indices")]
        ),
        experts=_pool([expert_overlap(a, b) for a, b in _paired(reference, variant, "expert_ids")]),
        acceptance=accepted_drafts(variant),
    )


def topk_overlap(reference: Tensor, variant: Tensor, index_topk: int) -> Share:
    """Sum of |A ∩ B| and of |A| over rows ≥ ``index_topk`` of two −1 padded index sets [T, k]."""
    rows = reference.shape[0]
    a, b = _members(reference, rows), _members(variant, rows)
    a, b = a[index_topk:], b[index_topk:]
    return Share(float((a & b).sum()), float(a.sum()))


def expert_overlap(reference: Tensor, variant: Tensor) -> Share:
    """Sum of |A ∩ B| and of top_k over the rows of two sets of distinct expert ids [T, top_k]."""
    same = reference.unsqueeze(-1) == variant.unsqueeze(-2)
    return Share(float(same.sum()), float(reference.numel()))


def accepted_drafts(result: Pass) -> Share:
    """Drafts equal to the main model's greedy token one position later, and all drafts."""
    if result.draft is None:
        return Share(0.0, 0.0)
    hits = result.draft.logits.argmax(-1) == result.main.logits[1:].argmax(-1)
    return Share(float(hits.sum()), float(hits.numel()))


def _bits(log_probs: Tensor, targets: Tensor) -> float:
    return float(-log_probs.gather(1, targets.unsqueeze(1)).sum()) / math.log(2)


def _members(indices: Tensor, rows: int) -> Tensor:
    """Membership matrix [T, rows] of a −1 padded index set."""
    member = torch.zeros(indices.shape[0], rows + 1, dtype=torch.bool)
    return member.scatter_(1, indices.long() + 1, True)[:, 1:]


def _paired(reference: Pass, variant: Pass, kind: str) -> list[tuple[Tensor, Tensor]]:
    """The choices ``kind`` of both passes, layer by layer, main model then draft."""
    pairs: list[tuple[Tensor, Tensor]] = []
    for a, b in ((reference.main, variant.main), (reference.draft, variant.draft)):
        if a is not None and b is not None:
            left, right = getattr(a.choices, kind), getattr(b.choices, kind)
            pairs.extend((left[layer], right[layer]) for layer in sorted(left))
    return pairs


def _pool(shares: list[Share]) -> Share:
    return Share(sum(s.part for s in shares), sum(s.whole for s in shares))
