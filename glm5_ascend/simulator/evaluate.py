"""Accuracy of quantised variants against the BF16 checkpoint on the same held-out windows.

Weights are those of each checkpoint; everything unquantised is computed in F32 and the per-token
activation quantisation of each scheme is applied, so the loss is that of the scheme itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from glm5_ascend.simulator.model import OfflineModel
from glm5_ascend.simulator.offline_metrics import Share, WindowScore, run_window, score_window
from glm5_ascend.simulator.offline_text import Window

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of one variant; shares are in 0…1, KL in nats per predicted token.

    ``bits_change`` is bits per byte divided by the reference's, minus one. ``mtp_acceptance`` is
    NaN without an MTP layer. Definitions: :mod:`glm5_ascend.simulator.offline_metrics`.
    """

    bits_per_byte: float
    bits_change: float
    kl_mean: float
    kl_p99: float
    top1_agreement: float
    topk_recall: float
    expert_agreement: float
    mtp_acceptance: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


Intervals = dict[str, tuple[float, float]]


def evaluate(
    models: Mapping[str, OfflineModel], windows: Sequence[Window], *, reference: str
) -> Iterator[tuple[str, WindowScore]]:
    """Score every model on every window, window by window; yields after each forward.

    Args:
        models: variants by name, the reference among them.
        windows: the same windows for all.
        reference: name of the model that KL, agreement and recall refer to.
    """
    topk = models[reference].config.index_topk
    others = [name for name in models if name != reference]
    for window in windows:
        base = run_window(models[reference], window)
        yield reference, score_window(base, base, window, topk)
        for name in others:
            yield name, score_window(run_window(models[name], window), base, window, topk)


def summarise(scores: Sequence[WindowScore]) -> Metrics:
    """Pool the windows of one variant."""
    return _Pooled(scores).metrics(np.arange(len(scores)))


def bootstrap(
    scores: Sequence[WindowScore], *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> Intervals:
    """Percentile intervals of every metric by resampling whole windows with replacement.

    Windows, not tokens, are resampled: tokens of one window share their context and are not
    independent. The reference's bits are resampled together with the variant's (paired).
    """
    pooled = _Pooled(scores)
    generator = np.random.default_rng(seed)
    draws = [
        pooled.metrics(generator.integers(len(scores), size=len(scores))).as_dict()
        for _ in range(samples)
    ]
    tail = (1 - level) / 2
    result: Intervals = {}
    for name in draws[0]:
        low, high = np.quantile([draw[name] for draw in draws], [tail, 1 - tail])
        result[name] = (float(low), float(high))
    return result


class _Pooled:
    """Per-window sums as arrays, so that a resample is a matter of indexing."""

    def __init__(self, scores: Sequence[WindowScore]) -> None:
        self._bytes = np.array([s.predicted_bytes for s in scores], dtype=np.float64)
        self._bits = np.array([s.bits for s in scores])
        self._reference_bits = np.array([s.reference_bits for s in scores])
        self._kl: list[Array] = [s.kl.numpy() for s in scores]
        self._shares = {
            "top1": _columns(scores, lambda s: s.top1),
            "topk": _columns(scores, lambda s: s.topk_recall),
            "experts": _columns(scores, lambda s: s.experts),
            "mtp": _columns(scores, lambda s: s.acceptance),
        }

    def metrics(self, rows: npt.NDArray[np.int64]) -> Metrics:
        bits = float(self._bits[rows].sum())
        kl = np.concatenate([self._kl[row] for row in rows])
        return Metrics(
            bits_per_byte=bits / float(self._bytes[rows].sum()),
            bits_change=bits / float(self._reference_bits[rows].sum()) - 1.0,
            kl_mean=float(kl.mean()),
            kl_p99=float(np.quantile(kl, 0.99)),
            top1_agreement=self._ratio("top1", rows),
            topk_recall=self._ratio("topk", rows),
            expert_agreement=self._ratio("experts", rows),
            mtp_acceptance=self._ratio("mtp", rows),
        )

    def _ratio(self, name: str, rows: npt.NDArray[np.int64]) -> float:
        part, whole = self._shares[name][rows].sum(axis=0)
        return float(part / whole) if whole else math.nan


def _columns(scores: Sequence[WindowScore], pick: Callable[[WindowScore], Share]) -> Array:
    return np.array([(pick(s).part, pick(s).whole) for s in scores], dtype=np.float64)
