"""Gating and expert layers in C++, one call per layer.

Integer products are exact and scaled by the reference's F32 operations in its order; so are SiLU
and the sum over slots, with an exponential that is correctly rounded where torch's may be one unit
off. A token's bits depend on that token and the weights alone: not on other tokens or the number of
threads. int4 weights are unpacked in registers, and no copy of a weight is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.entry_points import FORMATS, EntryPoints, in_main_memory
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.moe.layer import Layer
from glm5_ascend.ops.native import check

_FLOAT, _W8A8, _W4A8 = 0, 1, 2
_BAD_EXPERT = 3
KERNELS = EntryPoints(
    "moe",
    {
        "g5_moe_gating": "pinnnpndipp",
        "g5_moe_experts": "pinnnppinnniippipnppipnp",
    },
)


def gating(
    logits: Tensor, bias: Tensor, top_k: int, factor: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    """(weights [T, top_k], ids int32 [T, top_k]); see api."""
    in_main_memory(logits, bias)
    rows, experts = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    bias = _plain(bias, wide)
    weights = torch.empty(rows, top_k, dtype=wide)
    ids = torch.empty(rows, top_k, dtype=torch.int32)
    code = KERNELS.get("g5_moe_gating", rows * experts * (top_k + 4))(
        logits.data_ptr(),
        FORMATS[logits.dtype],
        rows,
        experts,
        logits.stride(0),
        bias.data_ptr(),
        top_k,
        factor,
        int(normalise),
        weights.data_ptr(),
        ids.data_ptr(),
    )
    if code:
        check(code, "moe_gating")
    return weights, ids


def experts(x: Tensor, weights: Tensor, ids: Tensor, up: Layer, down: Layer) -> Tensor:
    """[T, H] in x's dtype; ids are local experts or -1.

    Raises:
        ArgumentError: an id names no expert.
    """
    in_main_memory(x, weights, ids, *(t for layer in (up, down) for t in layer if t is not None))
    tokens, hidden = x.shape
    if x.stride(1) != 1:
        x = x.contiguous()
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    weights = _plain(weights, wide)
    if ids.dtype not in (torch.int32, torch.int64):
        ids = ids.long()
    ids = ids if ids.is_contiguous() else ids.contiguous()
    scheme = _FLOAT if up.scale is None else _W8A8 if up.scale_bias is None else _W4A8
    first, second = _prepared(up, wide), _prepared(down, wide)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    rows = tokens * ids.shape[1]
    kernel = KERNELS.get("g5_moe_experts", rows * hidden * second.weight.shape[2])
    code = kernel(
        x.data_ptr(),
        FORMATS[x.dtype],
        tokens,
        hidden,
        x.stride(0),
        weights.data_ptr(),
        ids.data_ptr(),
        ids.element_size(),
        ids.shape[1],
        first.weight.shape[0],
        second.weight.shape[2],
        scheme,
        0 if up.scale is not None else FORMATS[first.weight.dtype],
        *_pointers(first),
        *_pointers(second),
        out.data_ptr(),
    )
    if code == _BAD_EXPERT:
        raise ArgumentError(f"topk_ids name expert {int(ids.max())} of {first.weight.shape[0]}")
    if code:
        check(code, "moe_experts")
    return out


def _prepared(layer: Layer, wide: torch.dtype) -> Layer:
    """``layer`` without gaps, in formats that the kernels read; itself where it is that already."""
    weight, scale, bias = layer
    if scale is None and (wide == torch.float64 or weight.dtype == torch.float64):
        weight = weight.to(wide)
    weight = weight if weight.is_contiguous() else weight.contiguous()
    if scale is not None:
        scale = _plain(scale, scale.dtype if scale.dtype in FORMATS else torch.float32)
    return Layer(weight, scale, None if bias is None else _plain(bias, torch.float32))


def _pointers(layer: Layer) -> tuple[int | None, ...]:
    """(weight, scale, format of scale, bias, columns of bias) for the kernel."""
    weight, scale, bias = layer
    return (
        weight.data_ptr(),
        None if scale is None else scale.data_ptr(),
        0 if scale is None else FORMATS[scale.dtype],
        None if bias is None else bias.data_ptr(),
        0 if bias is None else bias.shape[2],
    )


def _plain(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """``tensor`` in ``dtype`` without gaps."""
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.is_contiguous() else tensor.contiguous()
