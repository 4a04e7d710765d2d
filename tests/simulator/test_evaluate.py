"""Held-out metrics: hand-made inputs with known answers, identical models, and planted faults."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from glm5_ascend.simulator.evaluate import bootstrap, evaluate, summarise
from glm5_ascend.simulator.model import Choices, Forward, OfflineModel
from glm5_ascend.simulator.offline_metrics import (
    Pass,
    Share,
    WindowScore,
    accepted_drafts,
    expert_overlap,
    score_window,
    topk_overlap,
)
from glm5_ascend.simulator.offline_text import Window
from tests.support.tiny_model import write_tiny


def make_pass(probabilities: list[list[float]], draft: list[int] | None = None) -> Pass:
    """A pass whose softmax is ``probabilities`` and whose draft row t says ``draft[t]``."""
    logits = torch.tensor(probabilities).log() + 3.0  # a constant shift changes no probability
    main = Forward(logits, torch.zeros(len(logits), 1), Choices())
    if draft is None:
        return Pass(main, None)
    rows = torch.nn.functional.one_hot(torch.tensor(draft), logits.shape[1]).float()
    return Pass(main, Forward(rows, torch.zeros(len(rows), 1), Choices()))


REFERENCE = make_pass([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.2, 0.2, 0.6]])
VARIANT = make_pass([[0.25, 0.5, 0.25], [0.25, 0.5, 0.25], [0.6, 0.2, 0.2]], draft=[1, 2])
WINDOW = Window(torch.tensor([0, 0, 2]), predicted_bytes=4)


def test_bits_count_the_predicted_tokens_only() -> None:
    score = score_window(VARIANT, REFERENCE, WINDOW, index_topk=1)
    # Tokens 1 and 2 are predicted with probability 1/4 and 1/4; the reference says 1/2 and 1/4.
    assert score.bits == pytest.approx(4.0)
    assert score.reference_bits == pytest.approx(3.0)
    metrics = summarise([score])
    assert metrics.bits_per_byte == pytest.approx(1.0)
    assert metrics.bits_change == pytest.approx(1 / 3)


def test_kl_and_top1_of_known_distributions() -> None:
    score = score_window(VARIANT, REFERENCE, WINDOW, index_topk=1)
    # Row 0: 0.5 ln 2 + 0.25 ln 0.5 = 0.25 ln 2; row 1 is equal; row 2 predicts nothing.
    assert score.kl.numpy() == pytest.approx([0.25 * math.log(2), 0.0])
    assert score.top1 == Share(1.0, 2.0)


def test_a_draft_is_accepted_when_the_main_model_agrees_one_position_later() -> None:
    # The main model's argmax at positions 1 and 2 is 1 and 0; the draft says 1 and 2.
    assert accepted_drafts(VARIANT) == Share(1.0, 2.0)
    assert accepted_drafts(REFERENCE) == Share(0.0, 0.0)
    none = summarise([score_window(REFERENCE, REFERENCE, WINDOW, index_topk=1)])
    assert math.isnan(none.mtp_acceptance)


def test_topk_recall_counts_rows_beyond_topk_and_ignores_padding() -> None:
    reference = torch.tensor([[0, -1], [0, 1], [0, 2], [1, 3]])
    variant = torch.tensor([[0, -1], [0, 1], [1, 2], [0, 2]])
    assert topk_overlap(reference, variant, index_topk=2) == Share(1.0, 4.0)
    assert topk_overlap(reference, variant, index_topk=0) == Share(4.0, 7.0)


def test_expert_overlap_ignores_the_order() -> None:
    reference = torch.tensor([[3, 1], [0, 2]])
    assert expert_overlap(reference, reference.flip(1)) == Share(4.0, 4.0)
    assert expert_overlap(reference, torch.tensor([[1, 0], [5, 4]])) == Share(1.0, 4.0)


def scores_of(bits: list[float]) -> list[WindowScore]:
    full = Share(8.0, 10.0)
    return [
        WindowScore(100, value, 100.0, torch.full((10,), value / 1000), full, full, full, full)
        for value in bits
    ]


def test_bootstrap_covers_the_mean_and_narrows_with_more_windows() -> None:
    generator = np.random.default_rng(1)
    few = scores_of((100 + 10 * generator.standard_normal(10)).tolist())
    many = scores_of((100 + 10 * generator.standard_normal(160)).tolist())
    narrow, wide = bootstrap(many, samples=300), bootstrap(few, samples=300)
    low, high = narrow["bits_per_byte"]
    assert low < summarise(many).bits_per_byte < high
    # The standard error of 160 windows of standard deviation 0.1 is 0.008; 95 % are 3.9 of it.
    assert high - low == pytest.approx(0.031, rel=0.35)
    assert wide["bits_per_byte"][1] - wide["bits_per_byte"][0] > 2 * (high - low)
    assert narrow["top1_agreement"] == (0.8, 0.8)
    assert bootstrap(many, samples=300) == narrow  # seeded


def test_bootstrap_keeps_variant_and_reference_together() -> None:
    """Windows of very different difficulty, all 2 % worse: the paired interval has no width."""
    scores = [
        replace(score, bits=1.02 * level, reference_bits=float(level))
        for score, level in zip(scores_of([1.0] * 20), range(10, 410, 20), strict=True)
    ]
    intervals = bootstrap(scores, samples=200)
    assert intervals["bits_change"] == pytest.approx((0.02, 0.02))
    assert intervals["bits_per_byte"][1] > 1.2 * intervals["bits_per_byte"][0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> OfflineModel:
    directory: Path = write_tiny(tmp_path_factory.mktemp("evaluate") / "tiny")
    return OfflineModel.load(directory)


def windows(count: int = 2) -> list[Window]:
    generator = torch.Generator().manual_seed(0)
    return [Window(torch.randint(0, 290, (128,), generator=generator), 381) for _ in range(count)]


def pooled(models: dict[str, OfflineModel]) -> dict[str, list[WindowScore]]:
    scores: dict[str, list[WindowScore]] = {name: [] for name in models}
    for name, score in evaluate(models, windows(), reference="reference"):
        scores[name].append(score)
    return scores


def test_an_identical_model_is_perfect(tiny: OfflineModel) -> None:
    scores = pooled({"reference": tiny, "copy": tiny})
    assert [len(part) for part in scores.values()] == [2, 2]
    metrics = summarise(scores["copy"])
    assert metrics == summarise(scores["reference"])
    assert (metrics.kl_mean, metrics.kl_p99, metrics.bits_change) == (0.0, 0.0, 0.0)
    assert (metrics.top1_agreement, metrics.topk_recall, metrics.expert_agreement) == (1, 1, 1)
    assert 0 <= metrics.mtp_acceptance <= 1


def test_planted_faults_move_their_metric(tiny: OfflineModel) -> None:
    layers = list(tiny.layers)
    attention = layers[1].attention
    assert attention.indexer is not None
    indexer = replace(attention.indexer, weights_proj=lambda x: torch.ones(len(x), 16))
    layers[1] = replace(layers[1], attention=replace(attention, indexer=indexer))
    selects_wrongly = replace(tiny, layers=tuple(layers))
    router = replace(tiny.layers[2].mlp, bias=torch.linspace(-2, 2, 8))
    routed = (*tiny.layers[:2], replace(tiny.layers[2], mlp=router), *tiny.layers[3:])
    scores = pooled(
        {
            "reference": tiny,
            "indexer": selects_wrongly,
            "router": replace(tiny, layers=routed),
            "head": replace(tiny, head=tiny.head.roll(1, 0)),
        }
    )
    metrics = {name: summarise(part) for name, part in scores.items()}
    assert metrics["indexer"].topk_recall < 0.95
    assert metrics["router"].expert_agreement < 0.95
    assert metrics["router"].kl_mean > 1e-4
    assert metrics["head"].topk_recall == 1.0
    assert metrics["head"].top1_agreement < 0.5
    assert metrics["head"].bits_change != 0.0
