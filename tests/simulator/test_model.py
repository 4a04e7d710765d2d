"""The offline model against transformers on plain checkpoints, longer than ``index_topk``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glm5_ascend.simulator.model import Choices, Forward, OfflineModel
from glm5_ascend.simulator.offline_layers import DecoderLayer
from tests.support import oracle as support
from tests.support.oracle import ENGINE_LATENT_EPS, HF_LATENT_EPS, HfOracle
from tests.support.tiny_model import write_tiny

TOKENS = 80  # five times index_topk of the tiny model
# Two F32 implementations with sums in different order; the planted faults below are > 100 times it.
F32_LIMIT = 5e-5


def sample(length: int = TOKENS, seed: int = 7) -> torch.Tensor:
    return torch.randint(0, 290, (length,), generator=torch.Generator().manual_seed(seed))


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference in units of the reference's standard deviation."""
    return float((found.double() - wanted.double()).abs().max() / wanted.double().std())


def assert_same_choices(found: Choices, wanted: support.Choices) -> None:
    assert found.topk_indices.keys() == wanted.topk_indices.keys()
    assert found.expert_ids.keys() == wanted.expert_ids.keys()
    for layer, rows in wanted.topk_indices.items():
        assert torch.equal(found.topk_indices[layer], rows), f"layer {layer} selects other keys"
    for layer, rows in wanted.expert_ids.items():
        assert torch.equal(found.expert_ids[layer].sort(-1).values.int(), rows)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {style: write_tiny(root / style, style=style) for style in ("5.1", "5.2")}


@pytest.fixture(scope="module")
def shared(checkpoints: dict[str, Path]) -> tuple[OfflineModel, Forward]:
    """Model and oracle result of the checkpoint with shared indexers."""
    oracle = HfOracle(checkpoints["5.2"], latent_eps=ENGINE_LATENT_EPS)
    result = oracle.forward(sample())
    choices = Choices(result.choices.topk_indices, result.choices.expert_ids)
    return OfflineModel.load(checkpoints["5.2"]), Forward(result.logits, result.hidden, choices)


@pytest.mark.parametrize("style", ["5.1", "5.2"])
@pytest.mark.parametrize(("eps", "value"), [("config", ENGINE_LATENT_EPS), ("hf", HF_LATENT_EPS)])
def test_forward_matches_transformers(
    checkpoints: dict[str, Path], style: str, eps: str, value: float
) -> None:
    wanted = HfOracle(checkpoints[style], latent_eps=value).forward(sample())
    found = OfflineModel.load(checkpoints[style], latent_eps=eps).forward(sample())
    assert relative_error(found.logits, wanted.logits) < F32_LIMIT
    assert relative_error(found.hidden, wanted.hidden) < F32_LIMIT
    assert_same_choices(found.choices, wanted.choices)


def test_float64_is_closer_than_float32(checkpoints: dict[str, Path]) -> None:
    wanted = HfOracle(checkpoints["5.2"], dtype=torch.float64).forward(sample()).logits
    models = [
        OfflineModel.load(checkpoints["5.2"], dtype) for dtype in (torch.float32, torch.double)
    ]
    narrow, wide = (relative_error(m.forward(sample()).logits, wanted) for m in models)
    # Rotary angles are F32 products in both, which bounds the F64 run.
    assert wide < narrow < F32_LIMIT


def test_only_layers_with_an_indexer_report_choices(
    shared: tuple[OfflineModel, Forward],
) -> None:
    model, wanted = shared
    owners = [i for i in range(model.config.num_hidden_layers) if model.config.has_indexer(i)]
    assert sorted(wanted.choices.topk_indices) == owners
    assert len(owners) < model.config.num_hidden_layers  # the model really has a shared layer


def test_injected_choices_replace_the_model_s_own(
    checkpoints: dict[str, Path], shared: tuple[OfflineModel, Forward]
) -> None:
    model, wanted = shared
    generator = torch.Generator().manual_seed(3)
    choices = Choices(
        {
            layer: random_rows(rows, generator)
            for layer, rows in wanted.choices.topk_indices.items()
        },
        {
            layer: torch.stack([torch.randperm(8, generator=generator)[:2] for _ in rows])
            for layer, rows in wanted.choices.expert_ids.items()
        },
    )
    oracle = HfOracle(checkpoints["5.2"], latent_eps=ENGINE_LATENT_EPS)
    replayed = oracle.forward(sample(), support.Choices(choices.topk_indices, choices.expert_ids))
    found = model.forward(sample(), choices)
    assert relative_error(found.logits, replayed.logits) < F32_LIMIT
    assert relative_error(found.logits, wanted.logits) > 0.1  # the random choices matter
    for layer, rows in choices.topk_indices.items():
        assert torch.equal(found.choices.topk_indices[layer], rows)


def test_choices_file_is_the_one_of_the_oracle(
    shared: tuple[OfflineModel, Forward], tmp_path: Path
) -> None:
    _, wanted = shared
    path = tmp_path / "choices.safetensors"
    wanted.choices.save(path)
    assert_same_choices(wanted.choices, support.Choices.load(path))
    assert_same_choices(Choices.load(path), support.Choices.load(path))


FAULTS = {
    "indexer bias dropped": lambda layer: with_indexer(
        layer, k_norm_bias=torch.zeros_like(layer.attention.indexer.k_norm_bias)
    ),
    "indexer weights negated": lambda layer: with_indexer(
        layer, weights_proj=lambda x: -layer.attention.indexer.weights_proj(x)
    ),
    "values of another head": lambda layer: replace(
        layer, attention=replace(layer.attention, w_uv=layer.attention.w_uv.roll(1, 0))
    ),
    "latent norm skipped": lambda layer: replace(
        layer, attention=replace(layer.attention, kv_a_norm=lambda x: x)
    ),
    "own choice ignored": lambda layer: replace(
        layer, attention=replace(layer.attention, indexer=None)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_exceeds_the_limit(
    shared: tuple[OfflineModel, Forward], fault: str
) -> None:
    model, wanted = shared
    layers = list(model.layers)
    layers[2] = FAULTS[fault](layers[2])
    broken = replace(model, layers=tuple(layers)).forward(sample())
    assert relative_error(broken.logits, wanted.logits) > 100 * F32_LIMIT


def test_short_sequences_are_blind_to_the_indexer(shared: tuple[OfflineModel, Forward]) -> None:
    """Why every comparison here is longer than index_topk."""
    model, _ = shared
    layers = [
        FAULTS["indexer weights negated"](layer) if layer.attention.indexer else layer
        for layer in model.layers
    ]
    tokens = sample(model.config.index_topk)
    broken = replace(model, layers=tuple(layers)).forward(tokens)
    assert torch.equal(broken.logits, model.forward(tokens).logits)


def with_indexer(layer: DecoderLayer, **changes: object) -> DecoderLayer:
    indexer = replace(layer.attention.indexer, **changes)
    return replace(layer, attention=replace(layer.attention, indexer=indexer))


def random_rows(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Ascending random subsets of the visible positions, as many as ``like`` holds per row."""
    rows = torch.full_like(like, -1)
    for position, row in enumerate(rows):
        count = int((like[position] >= 0).sum())
        chosen = torch.randperm(position + 1, generator=generator)[:count]
        row[:count] = chosen.sort().values.int()
    return rows
