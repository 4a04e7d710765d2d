"""Router and float experts of the mixture of experts, in the places that vLLM gives them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig, RoutingMethodType
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

from glm5_ascend.ops import moe_experts, moe_gating
from glm5_ascend.simulator import kernels
from glm5_ascend.simulator.injection import EXPERTS, Positions, injected


class Glm5Router(BaseRouter):  # type: ignore[misc]
    """Sigmoid scores in F32; the correction bias steers the choice but not the weights."""

    def __init__(self, stock: Any, bias: Tensor, config: Any, layer: int, where: Positions) -> None:
        super().__init__(stock.top_k, stock.global_num_experts, eplb_state=stock.eplb_state)
        self.bias = bias
        self.factor = float(config.routed_scaling_factor)
        self.normalise = bool(config.norm_topk_prob)
        self.layer = layer
        self.positions = where

    @property
    def routing_method_type(self) -> RoutingMethodType:
        return RoutingMethodType.DeepSeekV3

    def _compute_routing(
        self,
        hidden_states: Tensor,
        router_logits: Tensor,
        indices_type: torch.dtype | None,
        **unused: Any,
    ) -> tuple[Tensor, Tensor]:
        """(weights F32 [T, top_k], ids int32 [T, top_k]) of router_logits F32 [T, experts]."""
        weights, ids = moe_gating(
            router_logits.float(), self.bias, self.top_k, self.factor, self.normalise
        )
        given = injected(self.layer, EXPERTS)
        if given is None:
            return weights, ids
        ids = given.replace(ids, self.positions.current)
        return self._weights(router_logits, ids), ids

    def _weights(self, logits: Tensor, ids: Tensor) -> Tensor:
        """Weights of given experts, by the formula of ``moe_gating``."""
        weights = logits.float().sigmoid().gather(1, ids.long())
        if self.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.factor


class FloatExperts(FusedMoEMethodBase):  # type: ignore[misc]
    """Experts in the model's dtype; honours ``expert_map``, so expert parallel works."""

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        """Not used: vLLM's unquantised method has created the weights that this one reads."""
        raise NotImplementedError

    def get_fused_moe_quant_config(self, layer: Any) -> Any:
        return FusedMoEQuantConfig.make()

    def apply(
        self, layer: Any, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, *shared: Any, **kw: Any
    ) -> Tensor:
        return moe_experts(
            x,
            topk_weights,
            topk_ids,
            layer.w13_weight,
            layer.w2_weight,
            expert_map=layer.expert_map,
        )


def install(moe: Any, config: Any, layer: int, where: Positions) -> None:
    """Give one of vLLM's ``DeepseekV2MoE`` modules our router and, on a CPU, our float experts."""
    runner = moe.experts
    runner.router = Glm5Router(
        runner.router, moe.gate.e_score_correction_bias, config, layer, where
    )
    # transformers scales the weights, vLLM the sum of the experts' outputs.
    runner.routed_scaling_factor = 1.0
    experts = runner.routed_experts
    if kernels.on_cpu() and isinstance(experts.quant_method, UnquantizedFusedMoEMethod):
        del experts.quant_method  # a torch module, which ours is not
        experts.quant_method = FloatExperts(experts.moe_config)
