"""Every smoothing leaves the float model as it is, in float64, with indexer, router and MTP."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import ConfigError
from glm5_ascend.quant.command import QuantizeOptions, run
from glm5_ascend.quant.methods import smooth_groups
from glm5_ascend.quant.methods.smooth_groups import Group, factors, group_of, merged
from glm5_ascend.quant.solutions import SmoothScales
from glm5_ascend.simulator.model import Forward, OfflineModel
from glm5_ascend.simulator.offline_load import load_layer, load_mtp_glue, load_norm
from glm5_ascend.simulator.offline_weights import WeightStore
from tests.support.tiny_model import write_tiny

TOKENS = 80  # five times index_topk
LIMIT = 1e-12


class SmoothedStore(WeightStore):
    """A checkpoint whose tensors are multiplied by the factors of smoothing, in float64."""

    scales: Mapping[str, SmoothScales] = {}

    def raw(self, name: str) -> Tensor:
        value, given = super().raw(name), self.scales.get(name)
        if given is None:
            return value
        value = value.double()
        if given.rows is not None:
            value = value * (given.rows if value.ndim == 1 else given.rows.unsqueeze(1))
        return value if given.columns is None else value * given.columns


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "rotated"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dense and sparse layers, shared indexers, MTP; with and without rotation, in float32."""
    source = write_tiny(tmp_path_factory.mktemp("smooth") / "source", dtype="float32")
    if not request.param:
        return source
    target = source.parent / "rotated"
    run(QuantizeOptions(source, target, "none", True, dtype="float32"))
    return target


def outputs(directory: Path, scales: Mapping[str, SmoothScales]) -> list[Forward]:
    """Main forward and first draft of the model with the factors."""
    with SmoothedStore(directory, torch.float64) as store:
        store.scales = scales
        config, eps = store.config, store.config.rms_norm_eps
        embedding, head = store.float("model.embed_tokens.weight"), store.float("lm_head.weight")
        count = config.num_hidden_layers
        model = OfflineModel(
            config,
            embedding,
            tuple(load_layer(store, i, eps) for i in range(count)),
            load_norm(store, "model.norm"),
            head,
            load_layer(store, count, eps),
            load_mtp_glue(store, embedding, head),
        )
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, config.vocab_size, (TOKENS,), generator=generator)
    main = model.forward(tokens)
    return [main, model.mtp(tokens[1:], main.hidden[:-1])]


def all_groups(config: Glm5Config) -> list[Group]:
    groups = []
    for layer in range(config.num_hidden_layers + 1):
        names = [*smooth_groups.ACTIVATIONS]
        if config.is_moe(layer):
            experts = range(config.n_routed_experts)
            names += ["mlp.shared_experts", *(f"mlp.experts.{e}" for e in experts)]
        else:
            names.append("mlp")
        groups += [group_of(config, layer, name) for name in names]
    return groups


def random_factors(groups: list[Group]) -> dict[str, SmoothScales]:
    generator = torch.Generator().manual_seed(7)
    parts = []
    for group in groups:
        exponent = 6 * torch.rand(group.width, generator=generator, dtype=torch.float64) - 3
        parts.append(factors(group, 2.0**exponent))
    return merged(parts)


def difference(left: list[Forward], right: list[Forward]) -> float:
    """Largest difference of logits, relative to the largest logit; 1 where a choice differs."""
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        for kind in ("topk_indices", "expert_ids"):
            first, second = getattr(a.choices, kind), getattr(b.choices, kind)
            if any(not torch.equal(first[layer], second[layer]) for layer in first):
                worst = max(worst, 1.0)
        worst = max(worst, float((a.logits - b.logits).abs().max() / a.logits.abs().max()))
    return worst


def test_all_vectors_together_change_nothing(checkpoint: Path) -> None:
    config = Glm5Config.from_dir(checkpoint)
    groups = all_groups(config)
    found = difference(outputs(checkpoint, {}), outputs(checkpoint, random_factors(groups)))
    print(f"{len(groups)} vectors: {found:.1e}")
    assert found < LIMIT


@cache
def plain_outputs(directory: Path) -> list[Forward]:
    return outputs(directory, {})


@pytest.mark.parametrize(
    ("activation", "forgotten"),
    [
        ("input_layernorm", "indexer.wk"),
        ("input_layernorm", "indexer.weights_proj"),
        ("q_a_layernorm", "indexer.wq_b"),
        ("post_attention_layernorm", "mlp.gate.weight"),
        ("post_attention_layernorm", "mlp.shared_experts.up_proj"),
        ("values", "o_proj"),
    ],
)
def test_a_forgotten_reader_is_noticed(checkpoint: Path, activation: str, forgotten: str) -> None:
    config = Glm5Config.from_dir(checkpoint)
    layer = next(
        i for i in range(config.num_hidden_layers) if config.has_indexer(i) and config.is_moe(i)
    )
    good = random_factors([group_of(config, layer, activation)])
    assert difference(plain_outputs(checkpoint), outputs(checkpoint, good)) < LIMIT
    missing = {name: scales for name, scales in good.items() if forgotten not in name}
    assert len(missing) < len(good)
    assert difference(plain_outputs(checkpoint), outputs(checkpoint, missing)) > 1e-6


def test_what_cannot_be_smoothed_is_refused() -> None:
    directory = Path("glm5_ascend/assets/small-glm5")
    config = Glm5Config.from_dir(directory)
    for activation in ("kv_a_layernorm", "model.norm", "indexer.k_norm", "mlp.experts.16", "hnorm"):
        with pytest.raises(ConfigError, match="cannot be smoothed"):
            group_of(config, 1, activation)
    with pytest.raises(ConfigError, match="cannot be smoothed"):
        group_of(config, 0, "mlp.shared_experts")
    shared = next(i for i in range(config.num_hidden_layers) if not config.has_indexer(i))
    readers = group_of(config, shared, "input_layernorm").consumers
    assert not any("indexer" in name for name in readers)


@pytest.mark.parametrize("bad", [0.0, -1.0, torch.inf, torch.nan])
def test_vectors_must_be_positive(bad: float) -> None:
    config = Glm5Config.from_dir(Path("glm5_ascend/assets/small-glm5"))
    group = group_of(config, 1, "values")
    vector = torch.ones(group.width)
    vector[3] = bad
    with pytest.raises(ValueError, match="positive vector"):
        factors(group, vector)
    with pytest.raises(ValueError, match="positive vector"):
        factors(group, torch.ones(group.width + 1))
