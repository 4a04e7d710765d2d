"""What the next-token distributions of two checkpoints say about each other, token by token.

p is the reference's, q the variant's distribution after the same tokens. Beside the mean KL stand
figures of the tail, which decides what sampling does: quantiles of KL, entropies, and the
probability that q gives to tokens outside p's nucleus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Of the reference's probability; the tokens beyond it are what nucleus sampling never draws.
NUCLEUS = 0.95
_QUANTILES = {"kl_p50": 0.5, "kl_p90": 0.9, "kl_p99": 0.99, "kl_p999": 0.999}


@dataclass(frozen=True, slots=True)
class TokenScores:
    """F64 or bool [predicted tokens] each; ``bits`` are of the true next token.

    ``outside`` is q's probability beyond p's nucleus, ``reference_outside`` p's own.
    """

    bits: Tensor
    reference_bits: Tensor
    kl: Tensor
    same_top1: Tensor
    entropy: Tensor
    reference_entropy: Tensor
    outside: Tensor
    reference_outside: Tensor

    @classmethod
    def join(cls, parts: Sequence[TokenScores]) -> TokenScores:
        """Concatenate."""
        fields = cls.__dataclass_fields__
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in fields})


def score_tokens(reference: Tensor, variant: Tensor, targets: Tensor) -> TokenScores:
    """Compare logits [rows, vocabulary] of both; ``targets`` int64 [rows] are the true tokens."""
    log_p = reference.double().log_softmax(-1)
    log_q = variant.double().log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    order = p.argsort(-1, descending=True)
    ranked = p.gather(-1, order)
    # A token is outside if those before it already hold the nucleus.
    is_outside = ranked.cumsum(-1) - ranked >= NUCLEUS
    true = targets.unsqueeze(1)
    return TokenScores(
        bits=-log_q.gather(1, true).squeeze(1) / math.log(2),
        reference_bits=-log_p.gather(1, true).squeeze(1) / math.log(2),
        kl=(p * (log_p - log_q)).sum(-1),
        same_top1=log_p.argmax(-1) == log_q.argmax(-1),
        entropy=-(q * log_q).sum(-1),
        reference_entropy=-(p * log_p).sum(-1),
        outside=(q.gather(-1, order) * is_outside).sum(-1),
        reference_outside=(ranked * is_outside).sum(-1),
    )


def tail(scores: TokenScores) -> dict[str, float]:
    """Quantiles of KL in nats, mean entropies in nats, shares outside the nucleus in 0…1."""
    values = np.quantile(scores.kl.numpy(), tuple(_QUANTILES.values()))
    return {
        **{name: float(value) for name, value in zip(_QUANTILES, values, strict=True)},
        "kl_max": float(scores.kl.max()),
        "entropy": float(scores.entropy.mean()),
        "reference_entropy": float(scores.reference_entropy.mean()),
        "outside_nucleus": float(scores.outside.mean()),
        "reference_outside_nucleus": float(scores.reference_outside.mean()),
    }
