"""Schemes, partitions and checks of the ``ascend`` quantisation, on layers without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glm5_ascend.errors import CheckpointError, ConfigError
from glm5_ascend.simulator.quant_param import missing_parts

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("vllm")]  # takes some seconds


class Layer(nn.Module):
    """Stands in for a vLLM linear layer of rank ``tp_rank``."""

    def __init__(self, tp_rank: int) -> None:
        super().__init__()
        self.tp_rank = tp_rank


def fill(parameter: Any, tensor: Tensor, *key: Any) -> None:
    parameter.weight_loader(parameter, tensor, *key)


def linear(kind: str, rank: int, inputs: int, outputs: list[int], full: tuple[int, int]) -> Any:
    """(method, layer) with the parameters of this rank."""
    from glm5_ascend.simulator import quant_linear

    method = getattr(quant_linear, kind)("model.layers.0.x")
    layer = Layer(rank)
    method.create_weights(layer, inputs, outputs, *full, torch.float32)
    return method, layer


def test_static_row_parallel_adds_the_integer_bias_once() -> None:
    """y of two ranks, summed, equals the formula over the whole input axis."""
    gen = torch.Generator().manual_seed(0)
    codes = torch.randint(-127, 128, (6, 32), generator=gen, dtype=torch.int8)
    bias = torch.randint(-9000, 9000, (6,), generator=gen, dtype=torch.int32)
    deq = torch.rand(6, generator=gen) * 1e-3
    x = torch.randn(5, 32, generator=gen)
    scale, offset = torch.tensor([0.02]), torch.tensor([7], dtype=torch.int8)
    total = torch.zeros(5, 6)
    for rank in (0, 1):
        method, layer = linear("StaticLinear", rank, 16, [6], (32, 6))
        for name, tensor in (
            ("weight", codes),
            ("input_scale", scale),
            ("input_offset", offset),
            ("quant_bias", bias),
            ("deq_scale", deq),
        ):
            fill(getattr(layer, name), tensor)
            assert not missing_parts(getattr(layer, name))
        method.process_weights_after_loading(layer)
        total += method.apply(layer, x[:, 16 * rank : 16 * rank + 16])

    quantised = torch.round(x / 0.02 + 7).clamp(-128, 127).double()
    expected = (quantised @ codes.double().T + bias.double()) * deq.double()
    assert torch.allclose(total.double(), expected, rtol=1e-5, atol=1e-5)


def test_fused_column_parallel_takes_each_part_of_this_rank() -> None:
    _, layer = linear("DynamicLinear", 1, 8, [2, 3], (8, 10))
    gate = torch.arange(4, dtype=torch.int8)[:, None].expand(4, 8).contiguous()
    up = torch.arange(10, 16, dtype=torch.int8)[:, None].expand(6, 8).contiguous()
    fill(layer.weight, gate, 0)
    fill(layer.weight, up, 1)
    fill(layer.weight_scale, torch.arange(4.0)[:, None], 0)

    assert layer.weight[:, 0].tolist() == [2, 3, 13, 14, 15]
    assert layer.weight_scale[:2, 0].tolist() == [2.0, 3.0]
    assert missing_parts(layer.weight_scale) == {1}
    with pytest.raises(ValueError, match="shape"):
        fill(layer.weight_scale, torch.arange(6.0), 1)


@pytest.mark.parametrize("kind", ["DynamicLinear", "StaticLinear"])
def test_a_replicated_layer_is_whole_on_every_rank(kind: str) -> None:
    codes = torch.arange(24, dtype=torch.int8).reshape(6, 4)
    scale = torch.arange(1.0, 7).reshape(6, 1)
    for rank in (0, 1):
        _, layer = linear(kind, rank, 4, [6], (4, 6))
        fill(layer.weight, codes)
        fill(layer.weight_scale, scale)
        assert torch.equal(layer.weight, codes)
        assert torch.equal(layer.weight_scale, scale)


def test_fused_modules_must_share_the_input_scale() -> None:
    method, layer = linear("StaticLinear", 0, 8, [2, 3], (8, 5))
    for part, scale in enumerate((0.5, 0.25)):
        fill(layer.input_scale, torch.tensor([scale]), part)
        fill(layer.input_offset, torch.tensor([1], dtype=torch.int8), part)

    with pytest.raises(CheckpointError, match="differ in input_scale"):
        method.process_weights_after_loading(layer)


def test_asymmetric_weights_are_refused() -> None:
    method, layer = linear("DynamicLinear", 0, 8, [2], (8, 2))
    fill(layer.weight_offset, torch.ones(2, 1))

    with pytest.raises(CheckpointError, match="weight_offset is not zero"):
        method.process_weights_after_loading(layer)


def experts(scheme: str, rank: int, size: int) -> Any:
    """Layer with 2 experts of intermediate size 8 and hidden size 4, cut over ``size`` ranks."""
    from glm5_ascend.simulator.quant_moe import QuantisedExperts

    parallel = SimpleNamespace(tp_rank=rank, tp_size=size)
    method: Any = QuantisedExperts(SimpleNamespace(moe_parallel_config=parallel), scheme)
    layer: Any = nn.Module()
    layer._map_global_expert_id_to_local_expert_id = lambda e: e - 2 if 2 <= e < 4 else -1
    method.create_weights(layer, 2, 4, 8 // size, torch.bfloat16)
    return layer


def test_int4_experts_of_one_tensor_parallel_rank() -> None:
    layer = experts("w4a8", rank=1, size=2)
    gate = torch.arange(4, dtype=torch.int8)[:, None].expand(4, 4).contiguous()
    down = torch.arange(8, dtype=torch.int8).expand(2, 8).contiguous()
    bias = torch.arange(16.0).expand(4, 16).contiguous()

    def put(name: str, tensor: Tensor, shard: str, expert: int) -> bool:
        parameter = getattr(layer, name)
        taken: bool = parameter.weight_loader(
            parameter, tensor, name, shard_id=shard, expert_id=expert, return_success=True
        )
        return taken

    assert put("w13_weight", gate, "w1", 2)
    assert put("w13_weight", gate + 10, "w3", 2)
    assert put("w2_weight", down, "w2", 3)
    assert put("w2_scale_bias", bias, "w2", 3)
    assert not put("w2_weight", down, "w2", 1)

    assert layer.w13_weight[0, :, 0].tolist() == [2, 3, 12, 13]
    assert layer.w2_weight[1, 0].tolist() == [4, 5, 6, 7]
    assert layer.w2_scale_bias[1, 0].tolist() == [float(c) for c in range(8, 16)]
    assert missing_parts(layer.w13_weight) == {(1, "w1"), (1, "w3")}
    with pytest.raises(ValueError, match="shape"):
        put("w2_scale_bias", bias[:, :1], "w2", 2)


def test_scales_keep_the_dtype_that_vllm_ascend_gives_them() -> None:
    assert experts("w8a8", 0, 1).w13_weight_scale.dtype == torch.bfloat16
    assert experts("w4a8", 0, 1).w13_weight_scale.dtype == torch.float32


def described(**changes: str) -> dict[str, Any]:
    """A description of one layer; ``changes`` by module name replace schemes ("" drops)."""
    base = {
        "self_attn.q_a_proj": "W8A8",
        "self_attn.kv_a_proj_with_mqa": "W8A8",
        "self_attn.kv_b_proj": "FLOAT",
        "mlp.gate": "FLOAT",
    }
    base |= {
        f"mlp.experts.{e}.{p}_proj": "W4A8_DYNAMIC" for e in (0, 1) for p in ("gate", "up", "down")
    }
    base |= changes
    entries = {f"model.layers.0.{name}.weight": kind for name, kind in base.items() if kind}
    return entries | {"version": "1.0.0", "group_size": 0}


def test_schemes_of_fused_modules_and_experts() -> None:
    from glm5_ascend.simulator.quant_config import AscendConfig

    config = AscendConfig(described())

    assert config.linear_scheme("model.layers.0.self_attn.fused_qkv_a_proj") == "W8A8"
    assert config.expert_scheme("model.layers.0.mlp.experts", 2) == "W4A8_DYNAMIC"
    assert config.stores_codes("model.layers.0.self_attn.q_a_proj.quant_bias")
    assert not config.stores_codes("model.layers.0.self_attn.q_a_proj.deq_scale")
    assert not config.stores_codes("model.layers.0.self_attn.kv_b_proj.weight")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"self_attn.q_a_proj": "W8A8_DYNAMIC"}, "computes them together"),
        ({"self_attn.q_a_proj": ""}, "no entry model.layers.0.self_attn.q_a_proj.weight"),
        ({"self_attn.q_a_proj": "W4A4_FLATQUANT_DYNAMIC"}, "W4A4_FLATQUANT_DYNAMIC"),
        ({"self_attn.kv_b_proj": "W8A8"}, "needs it as FLOAT"),
        ({"mlp.gate": "W8A8_DYNAMIC"}, "needs it as FLOAT"),
        ({"mlp.experts.1.up_proj": "W8A8_DYNAMIC"}, "computes them together"),
        ({f"mlp.experts.{e}.{p}_proj": "W8A8" for e in (0, 1) for p in ("gate", "up", "down")},
         "linear layers only"),
    ],
)  # fmt: skip
def test_contradictions_in_the_description(changes: dict[str, str], message: str) -> None:
    from glm5_ascend.simulator.quant_config import AscendConfig

    def read() -> None:
        config = AscendConfig(described(**changes))
        config.linear_scheme("model.layers.0.self_attn.fused_qkv_a_proj")
        config.expert_scheme("model.layers.0.mlp.experts", 2)

    with pytest.raises(ConfigError) as caught:
        read()
    assert message in caught.value.message


def test_group_size_is_refused() -> None:
    from glm5_ascend.simulator.quant_config import AscendConfig

    with pytest.raises(ConfigError, match="group_size 256"):
        AscendConfig(described() | {"group_size": 256})


def test_in_tiles_gives_a_row_the_same_bits_in_any_batch() -> None:
    from glm5_ascend.simulator import dense

    gen = torch.Generator().manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        for columns, width in ((160, 192), (320, 96), (16, 96), (96, 256)):
            x = torch.randn(67, width, generator=gen).to(dtype)
            weight = torch.randn(columns, width, generator=gen).to(dtype)
            whole = dense.linear(x, weight)
            for rows in (slice(0, 1), slice(3, 20), slice(66, 67), slice(16, 48)):
                assert torch.equal(dense.linear(x[rows], weight), whole[rows])
            gated = dense.silu_and_mul(x)
            assert torch.equal(dense.silu_and_mul(x[5:6]), gated[5:6])


def test_plugin_is_idle_when_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from glm5_ascend import simulator

    assert simulator.platform_plugin() == "glm5_ascend.simulator.platform.Glm5CpuPlatform"
    monkeypatch.setenv("GLM5_ASCEND_PLUGIN", "0")
    assert simulator.platform_plugin() is None
