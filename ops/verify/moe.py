"""Conformance of gating and experts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify.case import DTYPES
from glm5_ascend.ops.verify.experts import Experts, gate
from glm5_ascend.ops.verify.rows import Expected, RowsCase, RowsProblem, Wanted

GROUP = "moe"
_ROWS = ("x", "topk_weights", "topk_ids")


def cases() -> Iterator[RowsCase]:
    """Token counts of decode and prefill, every scheme and dtype, equal scores, absent experts."""
    for tokens, experts, top_k in ((1, 256, 8), (62, 256, 8), (213, 16, 4)):
        yield _case(
            f"gating-{tokens}x{experts}-top{top_k}",
            "quick",
            _gating,
            tokens=tokens,
            experts=experts,
            top_k=top_k,
        )
    yield _case("gating-equal-scores", "quick", _gating, tokens=9, experts=32, top_k=8, equal=True)
    for tokens in (1, 4, 62):
        for dtype in DTYPES:
            label = f"experts-{tokens}-float-{DTYPES[dtype]}"
            yield _case(label, "normal", _float_experts, tokens=tokens, dtype=dtype)
        for scheme in ("w8a8", "w4a8"):
            label = f"experts-{tokens}-{scheme}"
            yield _case(label, "quick", _integer_experts, tokens=tokens, scheme=scheme)
    label = "experts-9-w4a8-some-absent"
    yield _case(label, "quick", _integer_experts, tokens=9, scheme="w4a8", absent=True)


def _case(label: str, size: str, make: Any, **options: Any) -> RowsCase:
    return RowsCase(group=GROUP, label=label, make=partial(make, **options), size=size)


def _gating(
    seed: int, *, tokens: int, experts: int, top_k: int, equal: bool = False
) -> RowsProblem:
    gen = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, experts, generator=gen)
    bias = torch.randn(experts, generator=gen) / 4
    if equal:
        logits, bias = (logits > 0).float(), torch.zeros(experts)
    factor = 2.5

    def wanted(bias_in_weights: bool = False, factor: float = factor, reverse: bool = False) -> Any:
        x, b = logits.double().numpy(), bias.double().numpy()
        if reverse:
            x, b = x[:, ::-1], b[::-1]
        weights, ids = gate(x, b, top_k, factor, True)
        if bias_in_weights:
            raised = np.take_along_axis(1 / (1 + np.exp(-x)) + b, ids, 1)
            weights = factor * raised / raised.sum(1, keepdims=True)
        ids = experts - 1 - ids if reverse else ids
        return {
            "weights": Expected(torch.from_numpy(weights), _single(weights)),
            "ids": Expected(torch.from_numpy(ids).int()),
        }

    arguments = {
        "logits": logits,
        "correction_bias": bias,
        "top_k": top_k,
        "routed_scaling_factor": factor,
    }
    wrong = {
        "bias in the router weights": lambda: wanted(bias_in_weights=True),
        "routed scaling forgotten": lambda: wanted(factor=1.0),
        "equal scores to the highest expert": lambda: wanted(reverse=True),
    }
    return RowsProblem("moe_gating", arguments, ("logits",), wanted(), wrong)


def _single(weights: Any) -> Tensor:
    # Sigmoid, sum and division each round in F32.
    return torch.from_numpy(weights * (1 + 4e-7)).float()


def _float_experts(seed: int, *, tokens: int, dtype: torch.dtype) -> RowsProblem:
    made = Experts(tokens, dtype=dtype, seed=seed)

    def wanted(**wrong: bool) -> Wanted:
        low = made.oracle(np.float32, **wrong)
        return {"y": Expected(made.oracle(np.float64, **wrong), low.to(dtype))}

    arguments = {
        "x": made.x,
        "topk_weights": made.weights,
        "topk_ids": made.ids,
        "w13": made.w13,
        "w2": made.w2,
    }
    wrong = {"up rows before gate rows": lambda: wanted(up_first=True)}
    return RowsProblem("moe_experts", arguments, _ROWS, wanted(), wrong)


def _integer_experts(seed: int, *, tokens: int, scheme: str, absent: bool = False) -> RowsProblem:
    made = Experts(tokens, seed=seed)
    arguments = made.quantised(scheme)
    if absent:
        # Experts 0..3 live on another rank; the weights of an absent expert count for nothing.
        there = torch.arange(16) - 4
        arguments["expert_map"] = there.clamp(min=-1)
        for name in ("w13", "w2", "w13_scale", "w2_scale", "w13_scale_bias", "w2_scale_bias"):
            arguments[name] = arguments[name][4:]
        made.weights = made.weights * (made.ids >= 4)

    def wanted(**wrong: bool) -> Wanted:
        oracle, step = made.integer_oracle(scheme, **wrong)
        low, _ = made.integer_oracle(scheme, np.float32, **wrong)
        return {"y": Expected(oracle, low, step)}

    wrong = {
        "scale_bias forgotten": lambda: wanted(bias=False),
        "nibbles swapped": lambda: wanted(swapped=True),
    }
    return RowsProblem("moe_experts", arguments, _ROWS, wanted(), wrong)
