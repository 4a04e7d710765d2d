"""Faults planted in the reference backends are caught by the conformance suite, most by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from glm5_ascend.ops.hadamard_quant import reference as hadamard
from glm5_ascend.ops.layout import Keys
from glm5_ascend.ops.lightning_indexer import reference as indexer
from glm5_ascend.ops.mlapo import reference as mlapo
from glm5_ascend.ops.moe import reference as moe
from glm5_ascend.ops.norm_rope import reference as norm_rope
from glm5_ascend.ops.paged_cache import reference as paged_cache
from glm5_ascend.ops.quant_linear import reference as quant_linear
from glm5_ascend.ops.sparse_flash_attention import reference as attention
from glm5_ascend.ops.verify import chain, suite
from glm5_ascend.ops.verify.attention import AttentionCase
from glm5_ascend.ops.verify.attention_data import SMALL
from glm5_ascend.ops.verify.case import Case, Problem
from glm5_ascend.ops.verify.indexer import IndexerCase
from glm5_ascend.ops.verify.layers import LayersCase
from glm5_ascend.ops.verify.runner import Result, public, run_one
from tests.ops import mistakes
from tests.ops.cases import REQUESTS

MIXED = next(r for r in REQUESTS if r.name == "mixed")
INDEXER = IndexerCase(requests=MIXED, heads=16, dtype=torch.float32)
ATTENTION = AttentionCase(requests=MIXED, shape=SMALL)
PRECISE = AttentionCase(requests=MIXED, shape=SMALL, dtype=torch.float32)
HOLES = AttentionCase(requests=MIXED, shape=SMALL, kind="holes")
FUTURE = AttentionCase(requests=MIXED, shape=SMALL, kind="future")
LAYERS = LayersCase()


def indexer_of(kind: str) -> Case:
    return IndexerCase(requests=MIXED, heads=16, kind=kind)


@cache
def named(operator: str, label: str) -> Case:
    """The suite's case."""
    found = [c for c in suite.cases() if (c.operator, str(c)) == (operator, label)]
    assert len(found) == 1, (operator, label)
    return found[0]


@cache
def problem_of(case: Case) -> Problem:
    return case.problem()


def check(case: Case) -> Result:
    return run_one(case, problem_of(case), "reference", public("reference"))


@dataclass(frozen=True)
class Fault:
    """A function of a module is replaced; ``suspect`` is what the suite has to say."""

    name: str
    case: Case
    module: Any
    function: str
    replacement: Callable[..., Any]
    suspect: str

    def __str__(self) -> str:
        return self.name


INDEXER_FAULTS = (
    Fault("relu_missing", INDEXER, indexer, "scores", mistakes.no_relu, "'missing ReLU'"),
    Fault(
        "head_weights_without_sign",
        INDEXER,
        indexer,
        "scores",
        mistakes.scores_with(Tensor.abs),
        "'head weights without sign'",
    ),
    Fault(
        "head_weights_in_bf16",
        INDEXER,
        indexer,
        "scores",
        mistakes.scores_with(lambda w: w.bfloat16().to(w.dtype)),
        "'head weights in BF16'",
    ),
    Fault(
        "ties_to_the_highest",
        indexer_of("two_values"),
        indexer,
        "best",
        mistakes.highest_ties,
        "'ties to the highest position'",
    ),
    Fault("not_ascending", INDEXER, indexer, "best", mistakes.unsorted, "is not ascending"),
    Fault(
        "nan_ranks_first",
        indexer_of("not_a_number"),
        indexer,
        "best",
        mistakes.unsorted,
        "chosen down to -inf",
    ),
    Fault(
        "sees_one_more",
        INDEXER,
        indexer,
        "visible_keys",
        mistakes.sees(1, indexer),
        "'one key too many'",
    ),
    Fault(
        "sees_one_less",
        INDEXER,
        indexer,
        "visible_keys",
        mistakes.sees(-1, indexer),
        "'one key too few'",
    ),
    Fault(
        "sees_everything",
        INDEXER,
        indexer,
        "visible_keys",
        mistakes.sees(1000, indexer),
        "'no causal mask'",
    ),
    Fault(
        "pages_in_order", INDEXER, Keys, "flat_rows", mistakes.pages_in_order(Keys.flat_rows), ""
    ),
)

ATTENTION_FAULTS = (
    Fault(
        "attention_sees_one_less",
        ATTENTION,
        attention,
        "visible_keys",
        mistakes.sees(-1, attention),
        "out: ",
    ),
    Fault(
        "attention_sees_everything",
        FUTURE,
        attention,
        "visible_keys",
        mistakes.sees(1000, attention),
        "'no causal mask'",
    ),
    Fault(
        "scale_two_percent_off",
        ATTENTION,
        attention,
        "_attend",
        mistakes.attend_with(lambda *a: (*a[:5], a[5] * 1.02)),
        "'scale 2 % too large'",
    ),
    Fault(
        "last_key_dropped",
        ATTENTION,
        attention,
        "_attend",
        mistakes.attend_with(mistakes.without_last),
        "'last chosen key dropped'",
    ),
    Fault(
        "query_in_bf16",
        PRECISE,
        attention,
        "_attend",
        mistakes.attend_with(mistakes.bf16_weights),
        "out: ",
    ),
    Fault(
        "unused_entries_attend",
        HOLES,
        attention,
        "_attend",
        mistakes.attend_with(lambda *a: (*a[:4], torch.ones_like(a[4]), a[5])),
        "out: ",
    ),
    Fault(
        "rotated_part_forgotten",
        ATTENTION,
        attention,
        "_attend",
        mistakes.attend_with(lambda q, k, *rest: (q[:1], k[:1], *rest)),
        "'rotated part forgotten'",
    ),
)

# Each of these was once a defect of a real implementation; the model's operators run together.
MODEL_FAULTS = (
    Fault("layers_relu_missing", LAYERS, indexer, "scores", mistakes.no_relu, "'missing ReLU'"),
    Fault(
        "layers_rope_half_split_in_the_indexer",
        LAYERS,
        norm_rope,
        "rotary_interleaved",
        mistakes.half_split_rope,
        "'wrong rope style in the indexer'",
    ),
    Fault(
        "layers_rope_half_split_in_attention",
        LAYERS,
        mlapo,
        "rotary_interleaved",
        mistakes.half_split_rope,
        "'wrong rope style in attention'",
    ),
    Fault(
        "layers_latent_not_normalised",
        LAYERS,
        mlapo,
        "forward",
        mistakes.raw_latent_returned(mlapo.forward),
        "'un-normalised q latent'",
    ),
    Fault(
        "layers_k_norm_as_rms_norm",
        LAYERS,
        norm_rope,
        "layer_norm",
        mistakes.key_norm_as_rms,
        "'k_norm as RMSNorm'",
    ),
    Fault(
        "layers_k_norm_bias_dropped",
        LAYERS,
        norm_rope,
        "layer_norm",
        mistakes.layer_norm_with(bias=0),
        "'k_norm bias dropped'",
    ),
    Fault(
        "layers_index_share_ignored",
        LAYERS,
        chain,
        "indices_of_layer",
        mistakes.always_selects,
        "'IndexShare ignored'",
    ),
)

MLAPO = "mlapo", "9-384-256-4x192+64-512-bf16-weights2-static"
NORM_FAULTS = (
    Fault(
        "mlapo_rope_half_split",
        named(*MLAPO),
        mlapo,
        "rotary_interleaved",
        mistakes.half_split_rope,
        "'wrong rope style'",
    ),
    Fault(
        "mlapo_latent_not_normalised",
        named(*MLAPO),
        mlapo,
        "forward",
        mistakes.raw_latent_returned(mlapo.forward),
        "'un-normalised q latent'",
    ),
    Fault(
        "mlapo_eps_swapped",
        named("mlapo", "9-192-96-4x48+64-256-f32-weights0-std0.01"),
        mlapo,
        "rms_norm",
        mistakes.rms_norm_with_eps(1e-6),
        "'epsilon 1e-6 for 1e-5'",
    ),
    Fault(
        "rope_half_split",
        named("norm_rope", "rotary_interleaved-62x64x64-bf16"),
        norm_rope,
        "rotary_interleaved",
        mistakes.half_split_rope,
        "'wrong rope style'",
    ),
    Fault(
        "k_norm_as_rms_norm",
        named("norm_rope", "layer_norm-62x128-bf16"),
        norm_rope,
        "layer_norm",
        mistakes.key_norm_as_rms,
        "'k_norm as RMSNorm'",
    ),
    Fault(
        "k_norm_eps_swapped",
        named("norm_rope", "layer_norm-8x128-small_values-f32"),
        norm_rope,
        "layer_norm",
        mistakes.layer_norm_with(eps=1e-5),
        "'epsilon 1e-5 for 1e-6'",
    ),
    Fault(
        "eps_swapped",
        named("norm_rope", "rms_norm-8x512-small_values-f32"),
        norm_rope,
        "rms_norm",
        mistakes.rms_norm_with_eps(1e-6),
        "'epsilon 1e-6 for 1e-5'",
    ),
    Fault(
        "latent_not_normalised",
        named("norm_rope", "rms_norm-62x512-bf16"),
        norm_rope,
        "rms_norm",
        lambda x, w, eps: x * w,
        "'not normalised'",
    ),
)

W4A8 = named("moe", "experts-62-w4a8")
INTEGER_FAULTS = (
    Fault(
        "nibbles_swapped",
        W4A8,
        moe,
        "unpack_int4",
        mistakes.swapped_nibbles,
        "'nibbles swapped'",
    ),
    Fault("packed_along_inputs", W4A8, moe, "unpack_int4", mistakes.packed_along_inputs, "y: "),
    Fault("nibbles_unsigned", W4A8, moe, "unpack_int4", mistakes.unsigned_nibbles, "y: "),
    Fault(
        "up_scale_bias_omitted",
        W4A8,
        moe,
        "experts",
        mistakes.experts_with(mistakes.no_scale_bias, of="up"),
        "y: ",
    ),
    Fault(
        "down_scale_bias_omitted",
        W4A8,
        moe,
        "experts",
        mistakes.experts_with(mistakes.no_scale_bias, of="down"),
        "y: ",
    ),
    Fault(
        "one_scale_bias_column",
        W4A8,
        moe,
        "experts",
        mistakes.experts_with(mistakes.first_scale_bias_column, of="down"),
        "y: ",
    ),
    Fault(
        "up_rows_first",
        named("moe", "experts-62-float-bf16"),
        moe,
        "experts",
        mistakes.experts_with(mistakes.up_rows_first, of="up"),
        "'up rows before gate rows'",
    ),
    Fault(
        "bias_in_router_weights",
        named("moe", "gating-62x256-top8"),
        moe,
        "gating",
        mistakes.gating_with(bias_in_weights=True),
        "'bias in the router weights'",
    ),
    Fault(
        "routed_scaling_forgotten",
        named("moe", "gating-62x256-top8"),
        moe,
        "gating",
        mistakes.gating_with(factor=1.0),
        "'routed scaling forgotten'",
    ),
    Fault(
        "equal_experts_to_the_highest",
        named("moe", "gating-equal-scores"),
        moe,
        "gating",
        mistakes.unstable_gating,
        "'equal scores to the highest expert'",
    ),
    Fault(
        "rounding_half_away",
        named("quant_linear", "dynamic_quant-ties-f32"),
        quant_linear,
        "dynamic_quant",
        mistakes.quant_with(away=True),
        "'rounds half away from zero'",
    ),
    Fault(
        "scale_by_128",
        named("quant_linear", "dynamic_quant-62x192-bf16"),
        quant_linear,
        "dynamic_quant",
        mistakes.quant_with(128),
        "'scale by 128'",
    ),
    Fault(
        "activation_offset_forgotten",
        named("quant_linear", "linear_w8a8_static-62x192x213-bf16"),
        quant_linear,
        "linear_w8a8_static",
        mistakes.static_without("offset"),
        "'activation offset forgotten'",
    ),
    Fault(
        "quant_bias_forgotten",
        named("quant_linear", "linear_w8a8_static-62x192x213-bf16"),
        quant_linear,
        "linear_w8a8_static",
        mistakes.static_without("quant_bias"),
        "'quant_bias forgotten'",
    ),
    Fault(
        "padding_slot_written",
        named("paged_cache", "write_paged_rows-62x128-bf16-pages16"),
        paged_cache,
        "forward",
        mistakes.write_padding,
        "'padding rows written'",
    ),
    Fault(
        "packed_scale_by_128",
        named("paged_cache", "kv_rows-62-bf16-pages16"),
        paged_cache,
        "pack",
        mistakes.packed_with_128(paged_cache.pack),
        "'scale by 128'",
    ),
    Fault(
        "not_rotated",
        named("hadamard_quant", "62x1-bf16"),
        hadamard,
        "rotate",
        lambda x: x,
        "'not rotated'",
    ),
)

FAULTS = (*INDEXER_FAULTS, *ATTENTION_FAULTS, *MODEL_FAULTS, *NORM_FAULTS, *INTEGER_FAULTS)


@pytest.mark.parametrize("case", {f.case: None for f in FAULTS}, ids=str)
def test_every_case_passes_without_a_fault(case: Case) -> None:
    check(case).require()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_suite_catches(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault.module, fault.function, fault.replacement)
    problem = check(fault.case).figures.problem
    assert fault.suspect in problem
    assert problem
