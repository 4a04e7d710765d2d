"""The served model: vLLM's ``GlmMoeDsaForCausalLM`` with our attention, experts and checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from vllm.model_executor.models.deepseek_v2 import DeepseekV2MoE, GlmMoeDsaForCausalLM

from glm5_ascend.simulator import dense, experts, kernels
from glm5_ascend.simulator.attention import SparseMla
from glm5_ascend.simulator.injection import Positions
from glm5_ascend.simulator.loading import Checkpoint


class Glm5AscendForCausalLM(GlmMoeDsaForCausalLM):  # type: ignore[misc]
    """Main model; loading fails unless every parameter comes from the checkpoint."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.positions = Positions()
        for layer in self.model.layers:
            adapt_layer(layer, self.config, self.positions)
        if kernels.on_cpu():
            dense.install(self)

    def forward(self, input_ids: Any, positions: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.positions.current = positions
        return super().forward(input_ids, positions, *args, **kwargs)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        checkpoint = Checkpoint(self, self.config, self.quant_config)
        loaded: set[str] = checkpoint.load(weights, super().load_weights)
        return loaded


def adapt_layer(layer: Any, config: Any, where: Positions) -> None:
    """Replace attention, router and float experts of one of vLLM's decoder layers."""
    attention = layer.self_attn
    stock = attention.mla_attn
    attention.mla_attn = SparseMla(
        stock,
        index_buffer(stock),
        layer=layer.layer_idx,
        theta=float(config.rope_parameters["rope_theta"]),
        eps=float(config.rms_norm_eps),
        where=where,
    )
    if isinstance(layer.mlp, DeepseekV2MoE):
        experts.install(layer.mlp, config, layer.layer_idx, where)


def index_buffer(stock: Any) -> Tensor:
    """int32 [max tokens, topk] that vLLM shares between the layers of one model."""
    buffer: Tensor = stock.mla_attn.impl.topk_indices_buffer
    return buffer
