"""Wrong versions of functions of the reference backends, each a plausible mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.lightning_indexer import reference as indexer
from glm5_ascend.ops.mlapo import reference as mlapo
from glm5_ascend.ops.moe import reference as moe
from glm5_ascend.ops.norm_rope import reference as norm_rope
from glm5_ascend.ops.quant_linear import reference as quant_linear
from glm5_ascend.ops.sparse_flash_attention import reference as attention


def half_split_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    shape = (len(x), *[1] * (x.ndim - 2), -1)
    c, s = cos.to(x.dtype).view(shape), sin.to(x.dtype).view(shape)
    first, second = x.chunk(2, -1)
    return torch.cat((first * c - second * s, second * c + first * s), -1)


def no_relu(query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
    dots = query.view(len(key), -1, query.shape[-1]) @ key.mT
    return (dots.view(*weights.shape, -1) * weights[..., None]).sum(1)


def scores_with(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    scores = indexer.scores
    return lambda query, key, weights: scores(query, key, change(weights))


def highest_ties(score: Tensor, visible: Tensor, count: int) -> Tensor:
    hidden = torch.arange(score.shape[1]) >= visible[:, None]
    order = score.masked_fill(hidden, -torch.inf).flip(1).sort(dim=1, descending=True, stable=True)
    return (score.shape[1] - 1 - order.indices[:, :count]).sort(1).values.int()


def unsorted(score: Tensor, visible: Tensor, count: int) -> Tensor:
    hidden = torch.arange(score.shape[1]) >= visible[:, None]
    return score.masked_fill(hidden, -torch.inf).topk(count).indices.int()


def sees(more: int, module: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    original = module.visible_keys

    def visible_keys(requests: Any, spans: Any, *, causal: bool) -> tuple[Tensor, Tensor]:
        request, visible = original(requests, spans, causal=causal)
        most = torch.zeros_like(visible)
        for start, count, keys in zip(
            requests.starts, requests.lengths, spans.lengths, strict=True
        ):
            most[start : start + count] = keys
        return request, torch.minimum((visible + more).clamp(min=0), most)

    return visible_keys


def attend_with(change: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    original = attention._attend
    return lambda *arguments: original(*change(*arguments))


def bf16_weights(query: list[Tensor], key: Any, value: Any, *rest: Any) -> tuple[Any, ...]:
    return [q.bfloat16().to(q.dtype) for q in query], key, value, *rest


def without_last(
    query: Any, key: Any, value: Any, flat: Tensor, valid: Tensor, scale: float
) -> Any:
    last = valid.sum(1, keepdim=True) - 1
    return query, key, value, flat, valid & (torch.arange(valid.shape[1]) != last), scale


def rms_norm_with_eps(eps: float) -> Callable[..., Tensor]:
    rms_norm = norm_rope.rms_norm
    return lambda x, weight, _: rms_norm(x, weight, eps)


def layer_norm_with(**change: Any) -> Callable[..., Tensor]:
    layer_norm = norm_rope.layer_norm

    def changed(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        bias = torch.zeros_like(bias) if "bias" in change else bias
        return layer_norm(x, weight, bias, change.get("eps", eps))

    return changed


def swapped_nibbles(packed: Tensor) -> Tensor:
    return torch.stack((packed >> 4, (packed << 4) >> 4), -2).flatten(-3, -2)


def packed_along_inputs(packed: Tensor) -> Tensor:
    pairs = torch.stack(((packed << 4) >> 4, packed >> 4), -1).flatten(-2)
    return pairs.view(*packed.shape[:-2], -1, packed.shape[-1])


def unsigned_nibbles(packed: Tensor) -> Tensor:
    return torch.stack((packed & 0xF, (packed >> 4) & 0xF), -2).flatten(-3, -2)


def experts_with(change: Callable[[Any], Any], *, of: str) -> Callable[..., Tensor]:
    original = moe.experts

    def experts(x: Tensor, weights: Tensor, ids: Tensor, up: Any, down: Any) -> Tensor:
        layers = {"up": up, "down": down}
        layers[of] = change(layers[of])
        return original(x, weights, ids, layers["up"], layers["down"])

    return experts


def no_scale_bias(layer: Any) -> Any:
    return layer._replace(scale_bias=torch.zeros_like(layer.scale_bias))


def first_scale_bias_column(layer: Any) -> Any:
    return layer._replace(scale_bias=layer.scale_bias[..., :1])


def up_rows_first(layer: Any) -> Any:
    return layer._replace(weight=layer.weight.roll(layer.weight.shape[1] // 2, 1))


def gating_with(bias_in_weights: bool = False, factor: float | None = None) -> Callable[..., Any]:
    gating = moe.gating

    def changed(logits: Tensor, bias: Tensor, k: int, scale: float, normalise: bool) -> Any:
        weights, ids = gating(logits, bias, k, factor or scale, normalise)
        if bias_in_weights:
            weights = (logits.sigmoid() + bias).gather(1, ids.long())
            weights = scale * weights / weights.sum(1, keepdim=True)
        return weights, ids

    return changed


def unstable_gating(*arguments: Any) -> Any:
    logits, bias, k, factor, _ = arguments
    score = logits.sigmoid()
    ids = (score + bias).flip(1).sort(dim=1, descending=True, stable=True).indices[:, :k]
    ids = logits.shape[1] - 1 - ids
    weights = score.gather(1, ids)
    return weights / (weights.sum(1, keepdim=True) + 1e-20) * factor, ids.int()


def quant_with(levels: int = 127, away: bool = False) -> Callable[..., Any]:
    def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.float().abs().amax(-1, keepdim=True) / levels
        codes = x.float() / scale.masked_fill(scale == 0, 1)
        codes = codes.sign() * (codes.abs() + 0.5).floor() if away else codes.round()
        return codes.clamp(-127, 127).to(torch.int8), scale

    return dynamic_quant


def static_without(part: str) -> Callable[..., Tensor]:
    original = quant_linear.linear_w8a8_static

    def linear(
        x: Tensor, w: Tensor, scale: Tensor, offset: Tensor, bias: Tensor, deq: Tensor
    ) -> Any:
        if part == "offset":
            offset = torch.zeros_like(offset)
        else:
            bias = torch.zeros_like(bias)
        return original(x, w, scale, offset, bias, deq)

    return linear


def raw_latent_returned(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``mlapo`` whose query_norm is the q latent before its norm."""

    def forward(inputs: Any) -> Any:
        x, scale = inputs.x, inputs.x_scale
        if inputs.down_q.is_int8:
            x, scale = mlapo.quantise(x, inputs.x_static)
        return replace(original(inputs), latent=mlapo.project(x, scale, inputs.down_q, inputs))

    return forward


def key_norm_as_rms(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return norm_rope.rms_norm(x, weight, eps) + bias


def always_selects(number: int, select: Callable[[], Tensor], previous: Any) -> Tensor:
    return select()


def pages_in_order(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keys of paged requests read as if their pages followed each other."""

    def flat_rows(keys: Any, request: Tensor, position: Tensor) -> Tensor:
        first = original(keys, request, torch.zeros_like(position))
        return first + position

    return flat_rows


def packed_with_128(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Packed rows whose scale is max / 128."""

    def pack(latent: Tensor, key_rope: Tensor) -> Tensor:
        tiles = latent.float().unflatten(-1, (4, 128))
        scale = tiles.abs().amax(-1, keepdim=True) / 128
        codes = (tiles / scale.where(scale > 0, 1)).round().clamp(-127, 127)
        rows = original(latent, key_rope).clone()
        rows[:, :512] = codes.flatten(1).to(torch.int8)
        rows[:, 640:] = scale.flatten(1).view(torch.int8)
        return rows

    return pack


def write_padding(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache[slots // cache.shape[1], slots % cache.shape[1]] = rows.to(cache.dtype)
