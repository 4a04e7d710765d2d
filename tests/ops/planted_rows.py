"""Faults of norms, MLAPO, integer layers and caches, planted in the reference backends."""

from __future__ import annotations

from glm5_ascend.ops.hadamard_quant import reference as hadamard
from glm5_ascend.ops.mlapo import reference as mlapo
from glm5_ascend.ops.moe import reference as moe
from glm5_ascend.ops.norm_rope import reference as norm_rope
from glm5_ascend.ops.paged_cache import reference as paged_cache
from glm5_ascend.ops.quant_linear import reference as quant_linear
from tests.ops import mistakes
from tests.ops.planted import Fault, named

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
