"""The calibration's forward against transformers in F64, layer for layer, faults included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from glm5_ascend.config import Glm5Config
from glm5_ascend.quant.calibration import experts_run, spill
from glm5_ascend.quant.calibration.folded_store import FoldedStore
from glm5_ascend.quant.calibration.session import Session
from glm5_ascend.quant.rotation import rotations
from glm5_ascend.simulator import offline_layers
from tests.quant.calibration.conftest import float_recipe, session, tiny_corpus
from tests.support.mtp import MtpOracle
from tests.support.oracle import HfOracle
from tests.support.tiny_model import write_tiny

# F32 sums in another order than the F64 oracle's, through rotations; faults are > 100 times it.
LIMIT = 5e-5
LAYERS = 4


class Passed:
    """Final hidden states and the MTP layer's output of every sequence of the tiny corpus."""

    def __init__(self, source: Path, directory: Path) -> None:
        self.corpus = tiny_corpus()
        run = session(source, directory, float_recipe(), self.corpus)
        run.begin(resume=False)
        run.layers = lambda: list(range(LAYERS + 1))  # type: ignore[method-assign]
        self.final = torch.empty(0)
        for layer in run.run():
            if layer == LAYERS - 1:
                self.final = self.rows(source, run, LAYERS, len(self.corpus.tokens)).clone()
        spans = self.corpus.spans()
        self.mtp = self.rows(source, run, LAYERS + 1, len(self.corpus.tokens) - len(spans))
        self.counts = {n: found.counts for n, found in run.coverage.items()}

    @staticmethod
    def rows(source: Path, run: Session, layer: int, count: int) -> torch.Tensor:
        """Hidden states in the basis of the source."""
        config = Glm5Config.from_dir(source)
        hidden = spill.open_rows(run.directory / f"hidden-{layer:04d}", count, config.hidden_size)
        return hidden.double() @ rotations(config)["R1"].dense().T


class Expected:
    """The same from transformers, with the norms that follow undone by comparing after them."""

    def __init__(self, source: Path) -> None:
        self.oracle = HfOracle(source, dtype=torch.float64)
        self.mtp = MtpOracle(self.oracle)
        tokens = tiny_corpus().tokens
        self.final, self.draft = [], []
        self.counts = {layer: torch.zeros(8, dtype=torch.int64) for layer in range(1, LAYERS + 1)}
        for rows in tiny_corpus().spans():
            main = self.oracle.forward(tokens[rows])
            self._count(main.choices.expert_ids)
            draft = self.mtp.step(tokens[rows][1:], main.hidden[:-1])
            self._count(draft.choices.expert_ids)
            self.final.append(main.hidden)
            self.draft.append(draft.hidden)

    def _count(self, ids: dict[int, torch.Tensor]) -> None:
        for layer, rows in ids.items():
            self.counts[layer] += torch.bincount(rows.flatten().long(), minlength=8)

    def error(self, found: Passed) -> float:
        norm = self.oracle.tensors["model.norm.weight"].double()
        return relative_error(rms(found.final) * norm, torch.cat(self.final))

    def mtp_error(self, found: Passed) -> float:
        norm = self.oracle.tensors[f"model.layers.{LAYERS}.shared_head.norm.weight"].double()
        return relative_error(rms(found.mtp) * norm, torch.cat(self.draft))


def rms(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.std())


@pytest.fixture(scope="module")
def expected(shared_source: Path) -> Expected:
    return Expected(shared_source)


def test_hidden_states_are_transformers_s(
    shared_source: Path, expected: Expected, tmp_path: Path
) -> None:
    found = Passed(shared_source, tmp_path / "work")
    assert expected.error(found) < LIMIT
    assert expected.mtp_error(found) < LIMIT
    for layer, counts in expected.counts.items():
        assert tuple(counts.tolist()) == found.counts[layer]


def test_an_indexer_in_every_layer(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "tiny", style="5.1", dtype="float32")
    wanted = Expected(source)
    found = Passed(source, tmp_path / "work")
    assert wanted.error(found) < LIMIT
    assert wanted.mtp_error(found) < LIMIT


def changed_config(**values: Any) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        original = FoldedStore.__init__

        def init(store: FoldedStore, *args: Any) -> None:
            original(store, *args)
            store.config = replace(store.config, **values)

        patch.setattr(FoldedStore, "__init__", init)

    return plant


def yarn_factor(patch: pytest.MonkeyPatch) -> None:
    original = offline_layers.sparse_flash_attention

    def scaled(*args: Any, **options: Any) -> Any:
        return original(*args[:4], args[4] * 1.874, **options)

    patch.setattr(offline_layers, "sparse_flash_attention", scaled)


def router_without_bias(patch: pytest.MonkeyPatch) -> None:
    original = offline_layers.moe_gating
    patch.setattr(
        offline_layers,
        "moe_gating",
        lambda logits, bias, *args, **options: original(logits, 0 * bias, *args, **options),
    )


def grouped_router(patch: pytest.MonkeyPatch) -> None:
    """DeepSeek's choice within the best half of four groups."""
    original = offline_layers.moe_gating

    def gating(logits: torch.Tensor, bias: torch.Tensor, *args: Any, **options: Any) -> Any:
        scores = (torch.sigmoid(logits) + bias).view(-1, 4, 2)
        best = scores.sum(-1).topk(2).indices
        open_groups = torch.zeros(len(logits), 4, dtype=torch.bool).scatter(1, best, True)
        masked = logits.masked_fill(~open_groups.repeat_interleave(2, 1), -30.0)
        return original(masked, bias, *args, **options)

    patch.setattr(offline_layers, "moe_gating", gating)


def unweighted_experts(patch: pytest.MonkeyPatch) -> None:
    original = experts_run.route

    def flat(*args: Any) -> Any:
        made = original(*args)
        return replace(made, weights=torch.ones_like(made.weights))

    patch.setattr("glm5_ascend.quant.calibration.layer_run.route", flat)


MAIN_FAULTS = {
    "theta of DeepSeek": changed_config(rope_theta=1e4),
    "eps of DeepSeek": changed_config(rms_norm_eps=1e-6),
    "mscale of YaRN": yarn_factor,
    "router without bias": router_without_bias,
    "router with groups": grouped_router,
    "experts without weights": unweighted_experts,
    "more positions selected": changed_config(index_topk=17),
}


@pytest.mark.parametrize("fault", MAIN_FAULTS)
def test_a_planted_fault_is_seen(
    shared_source: Path,
    expected: Expected,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    MAIN_FAULTS[fault](monkeypatch)
    assert expected.error(Passed(shared_source, tmp_path / "work")) > 100 * LIMIT


def test_an_mtp_layer_without_residual_is_seen(
    shared_source: Path, expected: Expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published quantiser feeds the MTP layer the last MLP's output alone."""
    original = Session._join

    def join(run: Session, store: FoldedStore, layer: int) -> Path:
        path = run.directory / f"hidden-{layer:04d}"
        hidden = spill.open_rows(path, len(run._corpus.tokens), store.config.hidden_size)
        kept = hidden.clone()
        hidden -= attended[0]
        try:
            return original(run, store, layer)
        finally:
            hidden.copy_(kept)

    attended: list[torch.Tensor] = []
    from glm5_ascend.quant.calibration.layer_run import LayerRun

    write = LayerRun._write_attended

    def remember(run: LayerRun) -> None:
        write(run)
        attended[:] = [run._following.clone()]

    monkeypatch.setattr(LayerRun, "_write_attended", remember)
    monkeypatch.setattr(Session, "_join", join)
    found = Passed(shared_source, tmp_path / "work")
    assert expected.error(found) < LIMIT
    assert expected.mtp_error(found) > 100 * LIMIT
