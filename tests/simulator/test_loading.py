"""Strict loading without an engine: names, parts and values."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glm5_ascend.errors import CheckpointError
from glm5_ascend.simulator.loading import Checkpoint
from glm5_ascend.simulator.quant_param import Loader, make_parameter

CONFIG = SimpleNamespace(num_hidden_layers=1, n_routed_experts=3)


def model_with(**parameters: Tensor) -> nn.Module:
    """A module with parameters of these dotted names ("__" for ".")."""
    root = nn.Module()
    for name, data in parameters.items():
        module = root
        *path, last = name.split("__")
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        parameter = data if isinstance(data, nn.Parameter) else nn.Parameter(data)
        module.register_parameter(last, parameter)
    return root


def copying(model: nn.Module, rename: dict[str, str] | None = None) -> Any:
    """A loader like vLLM's: copies each tensor into the parameter of its (mapped) name."""

    def load(weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        parameters, loaded = dict(model.named_parameters()), set()
        for name, tensor in weights:
            target = (rename or {}).get(name, name)
            parameters[target].data.copy_(tensor)
            loaded.add(target)
        return loaded

    return load


def test_complete_checkpoint_loads_and_mtp_tensors_are_left_out() -> None:
    model = model_with(model__norm__weight=torch.zeros(2))
    weights = [
        ("model.norm.weight", torch.ones(2)),
        ("model.layers.1.enorm.weight", torch.ones(2)),
        ("rot.weight", torch.ones(2, 2)),
    ]

    loaded = Checkpoint(model, CONFIG, None).load(weights, copying(model))

    assert loaded == {"model.norm.weight"}
    assert torch.equal(model.get_parameter("model.norm.weight").data, torch.ones(2))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "tensor model.norm.weight missing from the checkpoint"),
        ([("model.norm.weight", torch.tensor([1.0, torch.nan]))], "holds NaN"),
        ([("model.norm.weight", torch.tensor([1.0, torch.inf]))], "holds NaN or infinity"),
        ([("model.norm.weight", torch.ones(2, dtype=torch.int8))], "is int8"),
        ([("model.norm.weight", torch.ones(3))], "tensor model.norm.weight does not fit"),
        ([("model.norm.bias", torch.ones(2))], "tensor model.norm.bias has no place"),
    ],
)
def test_faults_name_the_tensor(weights: list[tuple[str, Tensor]], message: str) -> None:
    model = model_with(model__norm__weight=torch.zeros(2))

    with pytest.raises(CheckpointError) as caught:
        Checkpoint(model, CONFIG, None).load(weights, copying(model))

    assert message in caught.value.message


def test_a_tensor_that_the_loader_drops_is_noticed() -> None:
    model = model_with(model__norm__weight=torch.zeros(2))

    def forgetful(weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        return {name for name, _ in weights}

    with pytest.raises(CheckpointError, match="was not filled"):
        Checkpoint(model, CONFIG, None).load([("model.norm.weight", torch.ones(2))], forgetful)


def test_names_of_fused_modules_and_experts() -> None:
    base = "model__layers__0__"
    model = model_with(
        **{
            f"{base}self_attn__fused_qkv_a_proj__weight": torch.zeros(1),
            f"{base}self_attn__indexer__wk_weights_proj__weight": torch.zeros(1),
            f"{base}mlp__gate_up_proj__weight": torch.zeros(1),
            f"{base}mlp__experts__routed_experts__w13_weight_scale": torch.zeros(1),
            f"{base}mlp__experts__routed_experts__w2_weight": torch.zeros(1),
        }
    )
    experts: Any = model.get_submodule("model.layers.0.mlp.experts.routed_experts")
    experts.expert_map = torch.tensor([-1, 0, -1])

    checkpoint = Checkpoint(model, CONFIG, None)

    prefix = "model.layers.0."
    of_rank = {
        f"{prefix}self_attn.q_a_proj.weight",
        f"{prefix}self_attn.kv_a_proj_with_mqa.weight",
        f"{prefix}self_attn.indexer.wk.weight",
        f"{prefix}self_attn.indexer.weights_proj.weight",
        f"{prefix}mlp.gate_proj.weight",
        f"{prefix}mlp.up_proj.weight",
        f"{prefix}mlp.experts.1.gate_proj.weight_scale",
        f"{prefix}mlp.experts.1.up_proj.weight_scale",
        f"{prefix}mlp.experts.1.down_proj.weight",
    }
    assert checkpoint.needed.keys() == of_rank
    assert f"{prefix}mlp.experts.2.down_proj.weight" in checkpoint.known


def test_names_of_the_draft() -> None:
    model = model_with(
        model__layers__1__mtp_block__input_layernorm__weight=torch.zeros(1),
        model__layers__1__rot__weight=torch.zeros(1),
        model__layers__1__shared_head__head__weight=torch.zeros(1),
        model__embed_tokens__weight=torch.zeros(1),
    )
    optional = ("model.embed_tokens.weight", "model.layers.1.shared_head.head.weight")

    checkpoint = Checkpoint(model, CONFIG, None, draft=True, optional=optional)

    assert checkpoint.needed.keys() == {"model.layers.1.input_layernorm.weight", "rot.weight"}
    assert "model.layers.1.embed_tokens.weight" in checkpoint.known


def test_parts_of_a_quantised_parameter_are_counted() -> None:
    data = torch.zeros(2, 3, dtype=torch.int8)
    loader = Loader(lambda part, tensor: (data[part : part + 1], tensor), {0, 1})
    model = model_with(model__norm__weight=make_parameter(data, loader, lambda *_: None))
    quantised = SimpleNamespace(stores_codes=lambda name: True)
    row = torch.ones(1, 3, dtype=torch.int8)

    def half(weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        for _, tensor in weights:
            loader.load(0, tensor)
        return set()

    with pytest.raises(CheckpointError, match="was not filled"):
        Checkpoint(model, CONFIG, quantised).load([("model.norm.weight", row)], half)
    with pytest.raises(ValueError, match="twice"):
        loader.load(0, row)
    with pytest.raises(ValueError, match="shape"):
        loader.load(1, row[:, :2])
    with pytest.raises(ValueError, match="int32"):
        loader.load(1, row.int())
