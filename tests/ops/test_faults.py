"""Every planted fault must be caught by a test of this folder.

A fault replaces one function of a reference backend; the check is the test that has to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops.lightning_indexer import reference as indexer
from glm5_ascend.ops.moe import reference as moe
from glm5_ascend.ops.norm_rope import reference as norm_rope
from glm5_ascend.ops.paged_cache import reference as paged_cache
from glm5_ascend.ops.quant_linear import reference as quant_linear
from glm5_ascend.ops.sparse_flash_attention import reference as attention
from tests.ops import (
    test_lightning_indexer,
    test_moe,
    test_norm_rope,
    test_paged_cache,
    test_quant_linear,
    test_sparse_flash_attention,
    test_transformers,
)
from tests.ops.cases import REQUESTS

MIXED = next(r for r in REQUESTS if r.name == "mixed")


def check_attention_of_transformers() -> None:
    config, made = test_transformers.make_config(16), test_transformers.make_attention(16)
    test_transformers.test_attention_equals_transformers(config, made)


def check_indexer_of_transformers() -> None:
    test_transformers.test_indexer_chooses_what_transformers_chooses(
        test_transformers.make_attention(16)
    )


def check_router_of_transformers() -> None:
    test_transformers.test_router_and_experts_equal_transformers(test_transformers.make_config(16))


def check_indexer() -> None:
    test_lightning_indexer.test_double_precision_equals_sorting_every_score(MIXED, 16)


def check_indexer_in_single_precision() -> None:
    test_lightning_indexer.test_low_precision_inputs_select_up_to_near_ties(MIXED, torch.float32)


def check_ties() -> None:
    test_lightning_indexer.test_ties_take_the_lowest_positions()


def check_nan_keys() -> None:
    test_lightning_indexer.test_a_nan_key_loses_against_every_number()


def check_attention() -> None:
    test_sparse_flash_attention.test_low_precision(MIXED, torch.float32)


def check_attention_in_bf16() -> None:
    test_sparse_flash_attention.test_low_precision(MIXED, torch.bfloat16)


def check_unused_entries() -> None:
    test_sparse_flash_attention.test_unused_entries_and_empty_rows()


def check_experts_w4a8() -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_moe.test_quantised_experts_equal_numpy(patch, 62, "w4a8", 0)


def check_float_experts() -> None:
    test_moe.test_float_experts_equal_numpy(62, torch.float32)


def check_gating() -> None:
    test_moe.test_bias_steers_the_choice_but_not_the_weight()


def check_equal_experts() -> None:
    test_moe.test_equal_scores_take_the_lowest_experts()


def check_dynamic_quant() -> None:
    test_quant_linear.test_dynamic_quant_rounds_half_to_even_and_scales_by_127(torch.float32)


def check_static_linear() -> None:
    test_quant_linear.test_static_linear(torch.float32, torch.int8)


def check_dynamic_linear() -> None:
    test_quant_linear.test_dynamic_linear(torch.float32, True)


def check_cache() -> None:
    test_paged_cache.test_rows_land_in_their_slots_and_nowhere_else(128, torch.float32)


def check_rms_norm() -> None:
    test_norm_rope.test_rms_norm(torch.float32)


def check_layer_norm() -> None:
    test_norm_rope.test_layer_norm(torch.float32)


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
        most = torch.tensor(spans.lengths)[request]
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


def write_padding(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache[slots // cache.shape[1], slots % cache.shape[1]] = rows.to(cache.dtype)


@dataclass(frozen=True)
class Fault:
    name: str
    module: Any
    function: str
    replacement: Callable[..., Any]
    check: Callable[[], None]

    def __str__(self) -> str:
        return self.name


FAULTS = (
    Fault(
        "rope_half_split_in_the_indexer",
        norm_rope,
        "rotary_interleaved",
        half_split_rope,
        check_indexer_of_transformers,
    ),
    Fault(
        "rope_half_split_in_attention",
        norm_rope,
        "rotary_interleaved",
        half_split_rope,
        check_attention_of_transformers,
    ),
    Fault("relu_missing", indexer, "scores", no_relu, check_indexer),
    Fault("head_weights_without_sign", indexer, "scores", scores_with(Tensor.abs), check_indexer),
    Fault(
        "head_weights_in_bf16",
        indexer,
        "scores",
        scores_with(lambda w: w.bfloat16().to(w.dtype)),
        check_indexer_in_single_precision,
    ),
    Fault("ties_to_the_highest", indexer, "best", highest_ties, check_ties),
    Fault("positions_not_ascending", indexer, "best", unsorted, check_indexer),
    Fault("nan_ranks_first", indexer, "best", unsorted, check_nan_keys),
    Fault("indexer_sees_one_more", indexer, "visible_keys", sees(1, indexer), check_indexer),
    Fault("indexer_sees_one_less", indexer, "visible_keys", sees(-1, indexer), check_indexer),
    Fault(
        "attention_sees_one_more",
        attention,
        "visible_keys",
        sees(1, attention),
        test_sparse_flash_attention.test_causal_mask_hides_later_keys_and_mode_0_does_not,
    ),
    Fault(
        "attention_sees_one_less", attention, "visible_keys", sees(-1, attention), check_attention
    ),
    Fault(
        "scale_two_percent_off",
        attention,
        "_attend",
        attend_with(lambda *a: (*a[:5], a[5] * 1.02)),
        check_attention_in_bf16,
    ),
    Fault("last_key_dropped", attention, "_attend", attend_with(without_last), check_attention),
    Fault("query_in_bf16", attention, "_attend", attend_with(bf16_weights), check_attention),
    Fault(
        "unused_entries_attend",
        attention,
        "_attend",
        attend_with(lambda *a: (*a[:4], torch.ones_like(a[4]), a[5])),
        check_unused_entries,
    ),
    Fault(
        "rotated_part_forgotten",
        attention,
        "_attend",
        attend_with(lambda q, k, *rest: (q[:1], k[:1], *rest)),
        check_attention,
    ),
    Fault(
        "k_norm_bias_dropped",
        norm_rope,
        "layer_norm",
        layer_norm_with(bias=0),
        check_indexer_of_transformers,
    ),
    Fault(
        "k_norm_as_rms_norm",
        norm_rope,
        "layer_norm",
        lambda x, w, b, eps: norm_rope.rms_norm(x, w, eps) + b,
        check_indexer_of_transformers,
    ),
    Fault(
        "latent_eps_swapped",
        norm_rope,
        "rms_norm",
        rms_norm_with_eps(1e-5),
        check_attention_of_transformers,
    ),
    Fault(
        "k_norm_eps_swapped", norm_rope, "layer_norm", layer_norm_with(eps=1e-5), check_layer_norm
    ),
    Fault("eps_swapped", norm_rope, "rms_norm", rms_norm_with_eps(1e-6), check_rms_norm),
    Fault(
        "latent_not_normalised",
        norm_rope,
        "rms_norm",
        lambda x, w, eps: x,
        check_attention_of_transformers,
    ),
    Fault("nibbles_swapped", moe, "unpack_int4", swapped_nibbles, check_experts_w4a8),
    Fault("packed_along_inputs", moe, "unpack_int4", packed_along_inputs, check_experts_w4a8),
    Fault("nibbles_unsigned", moe, "unpack_int4", unsigned_nibbles, check_experts_w4a8),
    Fault(
        "up_scale_bias_omitted",
        moe,
        "experts",
        experts_with(no_scale_bias, of="up"),
        check_experts_w4a8,
    ),
    Fault(
        "down_scale_bias_omitted",
        moe,
        "experts",
        experts_with(no_scale_bias, of="down"),
        check_experts_w4a8,
    ),
    Fault(
        "one_scale_bias_column",
        moe,
        "experts",
        experts_with(first_scale_bias_column, of="down"),
        check_experts_w4a8,
    ),
    Fault(
        "up_rows_first", moe, "experts", experts_with(up_rows_first, of="up"), check_float_experts
    ),
    Fault("bias_in_router_weights", moe, "gating", gating_with(bias_in_weights=True), check_gating),
    Fault(
        "routed_scaling_forgotten",
        moe,
        "gating",
        gating_with(factor=1.0),
        check_router_of_transformers,
    ),
    Fault("equal_experts_to_the_highest", moe, "gating", unstable_gating, check_equal_experts),
    Fault(
        "rounding_half_away",
        quant_linear,
        "dynamic_quant",
        quant_with(away=True),
        check_dynamic_quant,
    ),
    Fault("scale_by_128", quant_linear, "dynamic_quant", quant_with(128), check_dynamic_linear),
    Fault(
        "activation_offset_forgotten",
        quant_linear,
        "linear_w8a8_static",
        static_without("offset"),
        check_static_linear,
    ),
    Fault(
        "quant_bias_forgotten",
        quant_linear,
        "linear_w8a8_static",
        static_without("quant_bias"),
        check_static_linear,
    ),
    Fault("padding_slot_written", paged_cache, "forward", write_padding, check_cache),
)


@pytest.mark.parametrize("check", sorted({f.check for f in FAULTS}, key=lambda c: c.__name__))
def test_every_check_passes_without_a_fault(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_comparison_catches(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault.module, fault.function, fault.replacement)
    with pytest.raises(AssertionError):
        fault.check()
