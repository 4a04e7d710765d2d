"""The layer-by-layer evaluation against the offline model that holds everything at once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from glm5_ascend.config import Glm5Config
from glm5_ascend.quant.evaluation import experts
from glm5_ascend.quant.evaluation.basis import find_basis, relative_error
from glm5_ascend.quant.evaluation.command import EvalOptions, run
from glm5_ascend.quant.evaluation.report import Report
from glm5_ascend.quant.evaluation.side import Side
from glm5_ascend.quant.evaluation.windows import read_windows
from glm5_ascend.simulator.evaluate import evaluate, summarise
from glm5_ascend.simulator.model import OfflineModel
from tests.quant.conftest import quantize
from tests.quant.evaluation.conftest import changed
from tests.support.hf import HfOracle
from tests.support.tiny_model import write_tiny

# Sums of F32 rows in another order; a planted fault is a thousand times larger.
SAME = 2e-4


def test_metrics_are_those_of_the_whole_model(
    report: Report, source: Path, w4a8: Path, prose: Path
) -> None:
    text = read_windows(source, Glm5Config.from_dir(source), prose, 300)
    models = {"a": OfflineModel.load(source), "b": OfflineModel.load(w4a8)}
    scores = [s for name, s in evaluate(models, text.windows, reference="a") if name == "b"]
    wanted = summarise(scores).as_dict()
    assert not any(math.isnan(value) for value in wanted.values())
    assert report.metrics.as_dict() == pytest.approx(wanted, rel=SAME)


def test_experts_in_groups_give_the_same(
    report: Report, source: Path, w4a8: Path, prose: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three experts at a time of eight: the last group is smaller."""
    monkeypatch.setattr(experts, "_GROUP_BYTES", 3 * 4 * 3 * 96 * 16)
    monkeypatch.setattr(experts, "_ROWS", 50)
    assert experts.StreamedExperts.below(Side(source).store, "").group == 3
    grouped = run(EvalOptions(w4a8, source, text=prose, tokens=300))
    assert grouped.metrics.as_dict() == pytest.approx(report.metrics.as_dict(), rel=SAME)


def test_a_checkpoint_against_itself_is_perfect(source: Path, prose: Path) -> None:
    metrics = run(EvalOptions(source, source, text=prose, tokens=100)).metrics
    assert (metrics.kl_mean, metrics.top1_agreement, metrics.bits_change) == (0.0, 1.0, 0.0)
    assert (metrics.topk_recall, metrics.expert_agreement) == (1.0, 1.0)


def test_13_routing_theta_and_eps_are_those_of_transformers(source: Path, tmp_path: Path) -> None:
    """msmodelslim !212: groups, bias, theta and eps of another model, silently."""
    tokens = torch.randint(0, 290, (128,), generator=torch.Generator().manual_seed(3))
    wanted = HfOracle(source).forward(tokens)

    def final(directory: Path) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        chosen = {}
        with Side(directory) as side:
            side.embed(tokens)
            for layer in range(side.config.num_hidden_layers):
                ids = side.run_layer(layer, 1).expert_ids
                if ids is not None:
                    chosen[layer] = ids.sort(-1).values.int()
            return side.final(), chosen

    hidden, ids = final(source)
    assert torch.allclose(hidden, wanted.hidden, rtol=0, atol=5e-5 * float(wanted.hidden.std()))
    assert ids.keys() == wanted.choices.expert_ids.keys()
    assert all(torch.equal(rows, wanted.choices.expert_ids[layer]) for layer, rows in ids.items())
    plain = changed(
        source,
        tmp_path / "no-bias",
        lambda n, t: torch.zeros_like(t) if n.endswith("correction_bias") else t,
    )
    assert not torch.allclose(final(plain)[0], wanted.hidden, atol=1e-3)


def test_the_error_of_a_layer_is_found_in_it(source: Path, prose: Path, tmp_path: Path) -> None:
    broken = changed(
        source,
        tmp_path / "broken",
        lambda n, t: -t if n.startswith("model.layers.2.") and "o_proj" in n else t,
    )
    found = run(EvalOptions(broken, source, text=prose, tokens=100))
    worst = found.worst_layer()
    assert worst is not None
    assert worst[0] == 2
    layers = found.scores.layers
    assert layers[1].hidden == 0.0
    assert layers[2].attention == pytest.approx(4.0)  # |-a - a|² = 4 |a|²
    assert found.matrices is not None
    assert [m for m, row in found.matrices.items() if row.get(2, 0.0) > 0] == ["self_attn.o_proj"]


def test_rotation_is_found_and_undone(
    report: Report, source: Path, rotated: Path, prose: Path
) -> None:
    turned = run(EvalOptions(rotated, source, text=prose, tokens=100))
    assert turned.scores.has_basis
    for layer in turned.scores.layers:
        assert all(e is not None and e < 1e-6 for e in (layer.hidden, layer.attention, layer.mlp))
    assert report.matrices is not None
    for layer, expert in report.matrices["mlp.experts.up_proj"].items():
        # Gaussian rows are at 1.2e-2 in int4, and the MTP layer is int8.
        assert (3e-3 if layer < 4 else 1e-6) < expert < 3e-2
    for row in report.matrices["self_attn.q_a_proj"].values():
        assert row < 2e-4


def test_basis_of_a_known_rotation() -> None:
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(400, 24, generator=generator)
    rotation = torch.linalg.qr(torch.randn(24, 24, generator=generator)).Q
    rotated = (table @ rotation).bfloat16()
    basis = find_basis(table, rotated)
    assert basis is not None
    assert torch.allclose(basis, rotation, atol=1e-2)
    assert find_basis(table, torch.randn(400, 24, generator=generator)) is None
    x = torch.randn(5, 24, generator=generator)
    assert relative_error(x, 1.1 * x @ rotation, rotation) == pytest.approx(0.01, rel=1e-4)
    assert relative_error(x, x, None) is None


def test_coverage_counts_every_choice(report: Report) -> None:
    for layer in report.scores.layers[1:-1]:
        assert layer.coverage is not None
        assert int(layer.coverage.sum()) == 3 * 128 * 2
    assert report.scores.layers[0].coverage is None


def test_an_fp8_release_is_the_reference_that_it_dequantises_to(
    prose: Path, tmp_path: Path
) -> None:
    """Blocks of 128 with partial ones at the border, against the same values in F32."""
    fp8 = write_tiny(tmp_path / "fp8", fp8=True, tokenizer=True, head_dim=16)
    plain = quantize(fp8, tmp_path / "plain", "none", rotate=False, dtype="float32")
    same = run(EvalOptions(plain, fp8, text=prose, tokens=100))
    assert abs(same.metrics.kl_mean) < 1e-9
    w8a8 = quantize(fp8, tmp_path / "w8a8", "w8a8")
    found = run(EvalOptions(w8a8, fp8, text=prose, tokens=100))
    assert 1e-6 < found.metrics.kl_mean < 0.5
    assert found.matrices is not None
    assert all(error < 2e-4 for error in found.matrices["self_attn.q_b_proj"].values())
