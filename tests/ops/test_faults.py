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
    mistakes,
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
        mistakes.half_split_rope,
        check_indexer_of_transformers,
    ),
    Fault(
        "rope_half_split_in_attention",
        norm_rope,
        "rotary_interleaved",
        mistakes.half_split_rope,
        check_attention_of_transformers,
    ),
    Fault("relu_missing", indexer, "scores", mistakes.no_relu, check_indexer),
    Fault(
        "head_weights_without_sign",
        indexer,
        "scores",
        mistakes.scores_with(Tensor.abs),
        check_indexer,
    ),
    Fault(
        "head_weights_in_bf16",
        indexer,
        "scores",
        mistakes.scores_with(lambda w: w.bfloat16().to(w.dtype)),
        check_indexer_in_single_precision,
    ),
    Fault("ties_to_the_highest", indexer, "best", mistakes.highest_ties, check_ties),
    Fault("positions_not_ascending", indexer, "best", mistakes.unsorted, check_indexer),
    Fault("nan_ranks_first", indexer, "best", mistakes.unsorted, check_nan_keys),
    Fault(
        "indexer_sees_one_more", indexer, "visible_keys", mistakes.sees(1, indexer), check_indexer
    ),
    Fault(
        "indexer_sees_one_less", indexer, "visible_keys", mistakes.sees(-1, indexer), check_indexer
    ),
    Fault(
        "attention_sees_one_more",
        attention,
        "visible_keys",
        mistakes.sees(1, attention),
        test_sparse_flash_attention.test_causal_mask_hides_later_keys_and_mode_0_does_not,
    ),
    Fault(
        "attention_sees_one_less",
        attention,
        "visible_keys",
        mistakes.sees(-1, attention),
        check_attention,
    ),
    Fault(
        "scale_two_percent_off",
        attention,
        "_attend",
        mistakes.attend_with(lambda *a: (*a[:5], a[5] * 1.02)),
        check_attention_in_bf16,
    ),
    Fault(
        "last_key_dropped",
        attention,
        "_attend",
        mistakes.attend_with(mistakes.without_last),
        check_attention,
    ),
    Fault(
        "query_in_bf16",
        attention,
        "_attend",
        mistakes.attend_with(mistakes.bf16_weights),
        check_attention,
    ),
    Fault(
        "unused_entries_attend",
        attention,
        "_attend",
        mistakes.attend_with(lambda *a: (*a[:4], torch.ones_like(a[4]), a[5])),
        check_unused_entries,
    ),
    Fault(
        "rotated_part_forgotten",
        attention,
        "_attend",
        mistakes.attend_with(lambda q, k, *rest: (q[:1], k[:1], *rest)),
        check_attention,
    ),
    Fault(
        "k_norm_bias_dropped",
        norm_rope,
        "layer_norm",
        mistakes.layer_norm_with(bias=0),
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
        mistakes.rms_norm_with_eps(1e-5),
        check_attention_of_transformers,
    ),
    Fault(
        "k_norm_eps_swapped",
        norm_rope,
        "layer_norm",
        mistakes.layer_norm_with(eps=1e-5),
        check_layer_norm,
    ),
    Fault("eps_swapped", norm_rope, "rms_norm", mistakes.rms_norm_with_eps(1e-6), check_rms_norm),
    Fault(
        "latent_not_normalised",
        norm_rope,
        "rms_norm",
        lambda x, w, eps: x,
        check_attention_of_transformers,
    ),
    Fault("nibbles_swapped", moe, "unpack_int4", mistakes.swapped_nibbles, check_experts_w4a8),
    Fault(
        "packed_along_inputs", moe, "unpack_int4", mistakes.packed_along_inputs, check_experts_w4a8
    ),
    Fault("nibbles_unsigned", moe, "unpack_int4", mistakes.unsigned_nibbles, check_experts_w4a8),
    Fault(
        "up_scale_bias_omitted",
        moe,
        "experts",
        mistakes.experts_with(mistakes.no_scale_bias, of="up"),
        check_experts_w4a8,
    ),
    Fault(
        "down_scale_bias_omitted",
        moe,
        "experts",
        mistakes.experts_with(mistakes.no_scale_bias, of="down"),
        check_experts_w4a8,
    ),
    Fault(
        "one_scale_bias_column",
        moe,
        "experts",
        mistakes.experts_with(mistakes.first_scale_bias_column, of="down"),
        check_experts_w4a8,
    ),
    Fault(
        "up_rows_first",
        moe,
        "experts",
        mistakes.experts_with(mistakes.up_rows_first, of="up"),
        check_float_experts,
    ),
    Fault(
        "bias_in_router_weights",
        moe,
        "gating",
        mistakes.gating_with(bias_in_weights=True),
        check_gating,
    ),
    Fault(
        "routed_scaling_forgotten",
        moe,
        "gating",
        mistakes.gating_with(factor=1.0),
        check_router_of_transformers,
    ),
    Fault(
        "equal_experts_to_the_highest", moe, "gating", mistakes.unstable_gating, check_equal_experts
    ),
    Fault(
        "rounding_half_away",
        quant_linear,
        "dynamic_quant",
        mistakes.quant_with(away=True),
        check_dynamic_quant,
    ),
    Fault(
        "scale_by_128",
        quant_linear,
        "dynamic_quant",
        mistakes.quant_with(128),
        check_dynamic_linear,
    ),
    Fault(
        "activation_offset_forgotten",
        quant_linear,
        "linear_w8a8_static",
        mistakes.static_without("offset"),
        check_static_linear,
    ),
    Fault(
        "quant_bias_forgotten",
        quant_linear,
        "linear_w8a8_static",
        mistakes.static_without("quant_bias"),
        check_static_linear,
    ),
    Fault("padding_slot_written", paged_cache, "forward", mistakes.write_padding, check_cache),
)


@pytest.mark.parametrize("check", sorted({f.check for f in FAULTS}, key=lambda c: c.__name__))
def test_every_check_passes_without_a_fault(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_comparison_catches(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault.module, fault.function, fault.replacement)
    with pytest.raises(AssertionError):
        fault.check()
