"""Public entries of the mixture of experts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from glm5_ascend.ops.dispatch import load
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.moe.layer import Layer

Scheme = Literal["float", "w8a8", "w4a8"]


def moe_gating(
    logits: Tensor,
    correction_bias: Tensor,
    top_k: int,
    routed_scaling_factor: float,
    norm_topk_prob: bool = True,
    *,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Choose ``top_k`` experts by sigmoid(logits) + bias; weigh them by the sigmoid alone.

    Args:
        logits: [T, E], used in F32 (F64 for F64).
        correction_bias: [E].
        top_k: experts per token.
        routed_scaling_factor: factor on every weight.
        norm_topk_prob: divide the weights by their sum + 1e-20 first.

    Returns:
        (weights F32 [T, top_k], ids int32 [T, top_k]), by descending biased score; equal
        scores: the lower expert first.
    """
    if logits.ndim != 2 or correction_bias.shape != logits.shape[1:]:
        raise ArgumentError(
            f"bias {tuple(correction_bias.shape)} does not fit logits {tuple(logits.shape)}"
        )
    if not 1 <= top_k <= logits.shape[1]:
        raise ArgumentError(f"top_k {top_k} must lie in 1..{logits.shape[1]}")
    module = load("moe", backend, logits)
    chosen: tuple[Tensor, Tensor] = module.gating(
        logits, correction_bias, top_k, routed_scaling_factor, norm_topk_prob
    )
    return chosen


def moe_experts(
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    w13: Tensor,
    w2: Tensor,
    *,
    scheme: Scheme = "float",
    w13_scale: Tensor | None = None,
    w2_scale: Tensor | None = None,
    w13_scale_bias: Tensor | None = None,
    w2_scale_bias: Tensor | None = None,
    expert_map: Tensor | None = None,
    apply_router_weight_on_input: bool = False,
    backend: str = "auto",
) -> Tensor:
    """sum_j weight_j * down_j(silu(gate_j x) * up_j x) over a token's experts, in slot order.

    Args:
        x: [T, H].
        topk_weights: [T, top_k].
        topk_ids: int [T, top_k], global expert ids; a negative one is no expert.
        w13: gate rows first, [E, 2I, H] float or int8 (w8a8), int8 [E, I, H] packed (w4a8).
        w2: [E, H, I] float or int8, int8 [E, H / 2, I] packed.
        scheme: "w8a8" and "w4a8" quantise the input and the activation per token to int8.
        w13_scale, w2_scale: [E, 2I, 1] and [E, H, 1], quantised schemes.
        w13_scale_bias, w2_scale_bias: [E, 2I, any] and [E, H, any], w4a8; summed over the last
            axis. Here y = x_scale * (scale * sum (x_q - 8) w + scale_bias), so a correct
            scale_bias is 8 * sum w * scale.
        expert_map: int [global experts] to local expert or -1 (not on this rank, skipped).
        apply_router_weight_on_input: multiply x instead of the result; top_k must be 1.

    Returns:
        [T, H] in x's dtype. A token's bits depend on no other token.

    Raises:
        ArgumentError: shapes that contradict each other, a missing scale, or an id that names no
            expert.
        BackendUnavailable: the named backend cannot run here.
    """
    _check(x, topk_weights, topk_ids, w13, w2, scheme)
    for name, tensor, rows in (("w13_scale", w13_scale, w13), ("w2_scale", w2_scale, w2)):
        _check_scale(name, tensor, rows, scheme, required=scheme != "float", width=1)
    for name, tensor, rows in (
        ("w13_scale_bias", w13_scale_bias, w13),
        ("w2_scale_bias", w2_scale_bias, w2),
    ):
        _check_scale(name, tensor, rows, scheme, required=scheme == "w4a8", width=None)
    if apply_router_weight_on_input:
        if topk_ids.shape[1] != 1:
            raise ArgumentError("apply_router_weight_on_input needs top_k 1")
        x = (x * topk_weights.to(x.dtype)).to(x.dtype)
        topk_weights = torch.ones_like(topk_weights)
    if expert_map is not None:
        topk_ids = _local(topk_ids, expert_map)
    module = load("moe", backend, x)
    out: Tensor = module.experts(
        x,
        topk_weights,
        topk_ids,
        Layer(w13, w13_scale, w13_scale_bias),
        Layer(w2, w2_scale, w2_scale_bias),
    )
    return out


def _local(ids: Tensor, expert_map: Tensor) -> Tensor:
    """Local experts of global ones, int64; -1 stays -1."""
    if ids.numel() and int(ids.max()) >= expert_map.shape[0]:
        raise ArgumentError(f"topk_ids name expert {int(ids.max())} of {expert_map.shape[0]}")
    ids = ids.long()
    return torch.where(ids < 0, -1, expert_map.long()[ids.clamp(min=0)])


def _check(
    x: Tensor, weights: Tensor, ids: Tensor, w13: Tensor, w2: Tensor, scheme: Scheme
) -> None:
    if scheme not in ("float", "w8a8", "w4a8"):
        raise ArgumentError(f"scheme must be float, w8a8 or w4a8, not {scheme}")
    if x.ndim != 2 or weights.shape != ids.shape or ids.shape[:1] != x.shape[:1]:
        raise ArgumentError(
            f"weights {tuple(weights.shape)} and ids {tuple(ids.shape)} do not fit {tuple(x.shape)}"
        )
    pairs = 2 if scheme == "w4a8" else 1
    hidden, inter = x.shape[1], w2.shape[2]
    if w13.shape[1:] != (2 * inter // pairs, hidden) or w2.shape[1] * pairs != hidden:
        raise ArgumentError(
            f"w13 {tuple(w13.shape)} and w2 {tuple(w2.shape)} do not fit hidden {hidden}"
        )
    if (scheme == "float") == (w13.dtype == torch.int8) or w13.dtype != w2.dtype:
        raise ArgumentError(f"scheme {scheme} cannot take {w13.dtype} weights")


def _check_scale(
    name: str,
    tensor: Tensor | None,
    weight: Tensor,
    scheme: Scheme,
    *,
    required: bool,
    width: int | None,
) -> None:
    if required != (tensor is not None):
        raise ArgumentError(f"scheme {scheme} {'needs' if required else 'takes no'} {name}")
    if tensor is None:
        return
    rows = weight.shape[1] * (2 if scheme == "w4a8" else 1)
    fits = tensor.ndim == 3 and tensor.shape[:2] == (weight.shape[0], rows)
    if not fits or width not in (None, tensor.shape[2]):
        raise ArgumentError(f"{name} {tuple(tensor.shape)} must be [{weight.shape[0]}, {rows}, 1]")
