"""Decisions of the served engine, written down for the reference: codes, keys, experts.

The served vLLM imports this module through ``--logits-processors tests.served.recorded:Recorded``;
nothing of the engine's arithmetic changes. While the folder that ``GLM5_TEST_DECISIONS`` names
exists, every forward pass leaves a file of :class:`Choices` there, named by its tokens.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from glm5_ascend.ops import dynamic_quant, moe_experts
from glm5_ascend.ops.moe.packing import pack_int4
from glm5_ascend.simulator.causal_lm import Glm5AscendForCausalLM
from glm5_ascend.simulator.indexer import Selector
from glm5_ascend.simulator.quant_linear import DynamicLinear
from glm5_ascend.simulator.quant_moe import QuantisedExperts
from tests.served.client import decisions_file
from tests.support.choices import Choices

# vLLM's fused modules and what they consist of.
_PARTS = {
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_folder = Path(os.environ["GLM5_TEST_DECISIONS"])
_linear, _experts = DynamicLinear.apply, QuantisedExperts.apply
_select, _forward = Selector.select, Glm5AscendForCausalLM.forward
_seen: Choices | None = None


def _recording_linear(self: Any, layer: Any, x: Any, bias: Any = None) -> Any:
    if _seen is not None:
        parent, _, name = self.prefix.rpartition(".")
        codes, _ = dynamic_quant(x)
        for part in _PARTS.get(name, (name,)):
            _seen.codes[f"{parent}.{part}"] = codes.clone()
    return _linear(self, layer, x, bias)


def _recording_experts(self: Any, layer: Any, x: Any, **rest: Any) -> Any:
    if _seen is not None:
        ids = rest["topk_ids"].sort(dim=-1).values.to(torch.int32)
        _seen.expert_ids[int(layer.layer_name.split(".")[2])] = ids
        _seen.codes[f"{layer.layer_name}.gate_up"], _ = dynamic_quant(x)
        _seen.codes[f"{layer.layer_name}.down"] = inner_codes(layer, x, ids)
    return _experts(self, layer, x, **rest)


def inner_codes(layer: Any, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return int8 [T, top_k, I]: how W4A8 experts quantise what goes into their down projection.

    The operator itself says it, with an identity for ``w2``: its results are codes times a scale,
    and the largest code of a row is 127.
    """
    count, hidden, inner = layer.w2_weight.shape[0], x.shape[1], layer.w2_weight.shape[2]
    identity = torch.eye(hidden, inner, dtype=torch.int8).expand(count, -1, -1)
    columns = []
    for slot in range(ids.shape[1]):
        values = moe_experts(
            x,
            torch.ones(len(x), 1),
            ids[:, slot : slot + 1],
            layer.w13_weight,
            pack_int4(identity),
            scheme="w4a8",
            w13_scale=layer.w13_weight_scale,
            w2_scale=torch.ones(count, hidden, 1),
            w13_scale_bias=layer.w13_scale_bias,
            w2_scale_bias=8 * identity.sum(dim=2, keepdim=True).float(),
        )[:, :inner]
        largest = values.abs().amax(dim=1, keepdim=True)
        columns.append((values * 127 / largest.masked_fill(largest == 0, 1)).round())
    return torch.stack(columns, dim=1).to(torch.int8)


def _recording_select(self: Any, *args: Any) -> Any:
    chosen = _select(self, *args)
    if _seen is not None:
        _seen.topk_indices[self.layer] = chosen.to(torch.int32)
    return chosen


def _recording_forward(self: Any, input_ids: Any, positions: Any, *args: Any, **kwargs: Any) -> Any:
    global _seen
    _seen = Choices() if _folder.is_dir() else None
    result = _forward(self, input_ids, positions, *args, **kwargs)
    if _seen is not None:
        _seen.save(_folder / decisions_file(input_ids.tolist()))
    _seen = None
    return result


DynamicLinear.apply, QuantisedExperts.apply = _recording_linear, _recording_experts
Selector.select, Glm5AscendForCausalLM.forward = _recording_select, _recording_forward


class Recorded(AdapterLogitsProcessor):
    """Leaves every request alone."""

    def is_argmax_invariant(self) -> bool:
        """Nothing is processed."""
        return True

    def new_req_logits_processor(self, params):  # type: ignore[no-untyped-def]
        """Return no processor."""
        return None
