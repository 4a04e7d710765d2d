"""Planted faults of router and experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from tests.support.fault_tools import Break, Proxy, attributes, hooks, layers_of, modeling
from tests.support.hf import HfOracle


def _gates(oracle: HfOracle) -> list[Any]:
    return [layer.mlp.gate for layer in layers_of(oracle) if hasattr(layer.mlp, "gate")]


def router(change: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]) -> Break:
    """Expert weights [T, k] recomputed by ``change(gate, logits, ids)``."""

    def apply(oracle: HfOracle) -> AbstractContextManager[None]:
        def hook(gate: Any, _args: Any, output: Any) -> Any:
            logits, _, ids = output
            return logits, change(gate, logits, ids), ids

        return hooks([gate.register_forward_hook(hook) for gate in _gates(oracle)])

    return apply


def _normalised(gate: Any, scores: torch.Tensor) -> torch.Tensor:
    weights = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * float(gate.routed_scaling_factor)


def bias_in_weights(gate: Any, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The correction bias counts in the weights, not only in the choice."""
    return _normalised(gate, (logits.sigmoid() + gate.e_score_correction_bias).gather(1, ids))


def softmax_scores(gate: Any, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Softmax instead of sigmoid scores."""
    return _normalised(gate, logits.softmax(dim=-1).gather(1, ids))


def not_normalised(gate: Any, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """``norm_topk_prob`` ignored."""
    return logits.sigmoid().gather(1, ids) * float(gate.routed_scaling_factor)


def scaling_missing(oracle: HfOracle) -> AbstractContextManager[None]:
    """``routed_scaling_factor`` ignored."""
    return attributes([(gate, "routed_scaling_factor", 1.0) for gate in _gates(oracle)])


def bias_dropped(oracle: HfOracle) -> AbstractContextManager[None]:
    """Experts chosen without the correction bias."""
    return attributes(
        [
            (gate, "e_score_correction_bias", torch.zeros_like(gate.e_score_correction_bias))
            for gate in _gates(oracle)
        ]
    )


def bf16_router(oracle: HfOracle) -> AbstractContextManager[None]:
    """Router logits rounded to BF16 before the sigmoid."""
    rounded: Any = Proxy(
        modeling.F, linear=lambda x, w: nn.functional.linear(x, w).bfloat16().float()
    )
    return mock.patch.object(modeling, "F", rounded)


@contextmanager
def swapped_gate_up(oracle: HfOracle) -> Iterator[None]:
    """Gate and up rows of the experts exchanged."""
    weights = [layer.mlp.experts.gate_up_proj for layer in layers_of(oracle) if _is_moe(layer)]

    def swap() -> None:
        for weight in weights:
            weight.data = torch.cat(weight.data.chunk(2, dim=1)[::-1], dim=1)

    swap()
    try:
        yield
    finally:
        swap()


def _is_moe(layer: Any) -> bool:
    return hasattr(layer.mlp, "experts")


class _Zero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


def shared_expert_missing(oracle: HfOracle) -> AbstractContextManager[None]:
    """No shared expert."""
    moe = [layer.mlp for layer in layers_of(oracle) if _is_moe(layer)]
    return attributes([(mlp, "shared_experts", _Zero()) for mlp in moe])
