"""Problems 7, 8, 9 and 20 of our list: what a user sees only in what the model says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from glm5_ascend.demo import SMALL_MODEL
from glm5_ascend.errors import ExitCode
from glm5_ascend.quant.evaluation.command import EvalOptions, run
from glm5_ascend.quant.evaluation.tokens import TokenScores, score_tokens, tail
from glm5_ascend.simulator.model import OfflineModel
from tests.quant.damage import copy_of
from tests.quant.evaluation.conftest import changed, described
from tests.support.golden import agreement


def swap_nibbles(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """What a kernel of another packing order would see."""
    if ".mlp.experts." not in name or tensor.dtype != torch.int8 or "layers.7." in name:
        return tensor
    raw = tensor.view(torch.uint8)
    return ((raw >> 4) | (raw << 4)).view(torch.int8)


def test_7_garbled_weights_are_told_from_a_good_copy(small_w4a8: Path, tmp_path: Path) -> None:
    """vllm-ascend #10984, #10211: nonsense after an upgrade, and no proof that weights are right.

    The good copy is the proof; a copy whose int4 codes have the other order in their bytes passes
    every look at names and shapes, and is found.
    """
    good = run(EvalOptions(small_w4a8, SMALL_MODEL, tokens=512))
    assert good.exit_code == ExitCode.DONE
    assert good.metrics.kl_mean < 0.02
    broken = changed(small_w4a8, tmp_path / "broken", swap_nibbles)
    found = run(EvalOptions(broken, SMALL_MODEL, tokens=512))
    assert found.exit_code == ExitCode.INPUT
    assert found.findings[0].startswith("garbled")
    assert found.metrics.kl_mean > 50 * good.metrics.kl_mean


def test_8_c8_is_measured_per_layer(source: Path, w4a8: Path, prose: Path, tmp_path: Path) -> None:
    """vllm-ascend #14378: scores move with the int8 indexer; which layers must be left out?

    A common offset in one layer's keys takes the int8 range from what tells them apart.
    """

    def offset(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name != "model.layers.1.self_attn.indexer.k_norm.bias":
            return tensor
        return tensor + 20_000 * torch.nn.functional.one_hot(torch.tensor(100), len(tensor))

    bent = changed(w4a8, tmp_path / "bent", offset)
    found = run(EvalOptions(bent, source, text=prose, tokens=200))
    recall = [layer.c8 for layer in found.scores.layers]
    shares = {i: share.part / share.whole for i, share in enumerate(recall) if share is not None}
    assert set(shares) == {i for i in range(5) if found.scores.layers[i].recall}
    assert found.c8_exclude == [1]
    assert shares[1] < 0.9 < min(share for layer, share in shares.items() if layer != 1)
    served = copy_of(bent, tmp_path / "served")
    described(served, **{"model.layers.1.self_attn.indexer.quant_type": "INT8_DYNAMIC"})
    worse = run(EvalOptions(served, source, text=prose, tokens=200))
    assert worse.layers_with_c8 == [1]
    assert worse.scores.layers[1].c8 == recall[1]
    before, after = (sum(s.part for s in r.scores.layers[1].recall) for r in (found, worse))
    assert after < before


def test_9_the_tail_shows_what_the_mean_hides() -> None:
    """vllm-ascend #14463: repetition in 9 of 1000 answers, none when greedy."""
    generator = torch.Generator().manual_seed(9)
    reference = torch.randn(2000, 50, generator=generator, dtype=torch.float64)
    variant = reference.clone()
    variant[::400] += 6 * torch.randn(5, 50, generator=generator, dtype=torch.float64)
    targets = torch.zeros(2000, dtype=torch.int64)
    figures = tail(score_tokens(reference, variant, targets))
    mean = float(score_tokens(reference, variant, targets).kl.mean())
    assert mean < 0.05
    assert figures["kl_p99"] == 0.0
    assert figures["kl_p999"] > 20 * mean
    assert figures["kl_max"] > 3
    assert figures["outside_nucleus"] > figures["reference_outside_nucleus"]


def test_9_every_figure_by_formula() -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(40, 30, generator=generator, dtype=torch.float64) for _ in range(2))
    targets = torch.randint(0, 30, (40,), generator=generator)
    scores = score_tokens(3 * a, 3 * b, targets)
    p, q = (np.exp(3 * x.numpy()) / np.exp(3 * x.numpy()).sum(1, keepdims=True) for x in (a, b))
    rows = np.arange(40)
    assert scores.bits.numpy() == pytest.approx(-np.log2(q[rows, targets.numpy()]))
    assert scores.reference_bits.numpy() == pytest.approx(-np.log2(p[rows, targets.numpy()]))
    assert scores.kl.numpy() == pytest.approx((p * np.log(p / q)).sum(1))
    assert scores.entropy.numpy() == pytest.approx(-(q * np.log(q)).sum(1))
    assert scores.reference_entropy.numpy() == pytest.approx(-(p * np.log(p)).sum(1))
    assert scores.same_top1.numpy().tolist() == (p.argmax(1) == q.argmax(1)).tolist()
    for row in rows:
        order = np.argsort(-p[row])
        # The fewest best tokens that hold 95 %.
        kept = order[: int(np.searchsorted(np.cumsum(p[row][order]), 0.95)) + 1]
        assert float(scores.outside[row]) == pytest.approx(1 - q[row][kept].sum())
        assert float(scores.reference_outside[row]) == pytest.approx(1 - p[row][kept].sum())
    figures = tail(TokenScores.join([scores, scores]))
    assert figures["kl_p90"] == pytest.approx(np.quantile(np.tile(scores.kl.numpy(), 2), 0.9))


def test_20_golden_prompts(small_w4a8: Path, tmp_path: Path) -> None:
    """Ascend/sglang #116: GSM8K 0.545 instead of 0.965, a fault of the loader.

    Twenty prompts of eight recorded tokens. A loader that reads scales in the wrong order
    still makes sentences.
    """
    tokenizer = Tokenizer.from_file(str(SMALL_MODEL / "tokenizer.json"))
    assert agreement(OfflineModel.load(SMALL_MODEL), tokenizer) == (20, 160)
    exact, single = agreement(OfflineModel.load(small_w4a8), tokenizer)
    assert exact >= 10
    assert single >= 140

    def reversed_scales(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flip(0) if name.endswith(".weight_scale") else tensor

    broken = changed(small_w4a8, tmp_path / "broken", reversed_scales)
    assert agreement(OfflineModel.load(broken), tokenizer)[1] < 120
