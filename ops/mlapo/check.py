"""Checks of mlapo's arguments, and their translation into what the backends take."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops import checks
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.mlapo import check_scales
from glm5_ascend.ops.mlapo.arguments import Inputs, Sizes
from glm5_ascend.ops.mlapo.call import Call, check_devices, check_modes
from glm5_ascend.ops.paged_cache.rows import LATENT, PACKED, ROTATED


def check(call: Call) -> Inputs:
    """Everything that fake tensors have too: shapes, dtypes, strides, devices, modes."""
    check_modes(call)
    sizes, dtype = _sizes(call), call.rmsnorm_gamma_cq.dtype
    checks.dtype("rmsnorm_gamma_cq", call.rmsnorm_gamma_cq, checks.FLOATS)
    checks.shape("rmsnorm_gamma_cq", call.rmsnorm_gamma_cq, (sizes.q_lora,))
    checks.dtype("rmsnorm_gamma_ckv", call.rmsnorm_gamma_ckv, (dtype,))
    checks.shape("rmsnorm_gamma_ckv", call.rmsnorm_gamma_ckv, (sizes.kv_lora,))
    checks.dtype("weight_uk", call.weight_uk, (dtype,))
    mode = call.weight_quant_mode
    if dtype == torch.float64 and mode:
        raise ArgumentError("int8 weights need activations of at most 32 bits, not float64")
    _check_tokens(call, dtype)
    check_devices(call)
    x_static = check_scales.static(call, "x", mode == 2 and call.token_x.dtype != torch.int8)
    latent_static = check_scales.static(call, "cq", mode > 0)
    cos, sin = _angles(call, sizes)
    return Inputs(
        sizes=sizes,
        dtype=dtype,
        x=call.token_x.flatten(0, -2),
        x_scale=check_scales.token_scales(call, sizes),
        x_static=x_static,
        latent_static=latent_static,
        down_q=check_scales.linear(call, "dq", dtype, mode == 2, x_static),
        down_kv=check_scales.linear(call, "dkv_kr", dtype, mode == 2, x_static),
        up_q=check_scales.linear(call, "uq_qr", dtype, mode > 0, latent_static),
        absorb=call.weight_uk,
        gamma_q=call.rmsnorm_gamma_cq.contiguous(),
        gamma_kv=call.rmsnorm_gamma_ckv.contiguous(),
        eps_q=call.rmsnorm_epsilon_cq,
        eps_kv=call.rmsnorm_epsilon_ckv,
        cos=cos,
        sin=sin,
        slots=_slots(call, sizes),
        kv_cache=_kv_cache(call, sizes, dtype),
        kr_cache=_kr_cache(call, sizes, dtype),
        quantise_query=call.query_quant_mode == 1,
        latent=_latent(call),
    )


def check_values(call: Call, inputs: Inputs) -> None:
    """What only real tensors can tell: slots inside the caches, angles of neighbouring pairs."""
    if not inputs.sizes.tokens:
        return
    low, high = checks.extremes(inputs.slots)
    slots = inputs.kv_cache.shape[0] * inputs.kv_cache.shape[1]
    if low < -1 or high >= slots:
        raise ArgumentError(
            f"cache_index must be -1 or name one of the {slots} slots of the caches; "
            f"{low if low < -1 else high} does neither"
        )
    half = inputs.sizes.rope // 2
    for name, table in (("rope_cos", call.rope_cos), ("rope_sin", call.rope_sin)):
        if table.shape[-1] != half and not torch.equal(table[..., :half], table[..., half:]):
            raise ArgumentError(
                f"{name} of width {2 * half} must hold the angles of its {half} pairs twice, one "
                "half after the other",
                f"pass the {half} columns of ops.rotary_table",
            )


def _sizes(call: Call) -> Sizes:
    ranks = {"weight_dq": 2, "weight_uq_qr": 2, "weight_dkv_kr": 2, "weight_uk": 3}
    for name, rank in ranks.items():
        if getattr(call, name).ndim != rank:
            raise ArgumentError(
                f"{name} must have {rank} axes, not shape {list(getattr(call, name).shape)}"
            )
    if call.token_x.ndim not in (2, 3):
        raise ArgumentError(
            f"token_x must be [T, hidden] or [B, S, hidden], not {list(call.token_x.shape)}"
        )
    heads, nope, kv_lora = call.weight_uk.shape
    rope = call.weight_dkv_kr.shape[1] - kv_lora
    if rope < 2 or rope % 2:
        raise ArgumentError(
            f"weight_dkv_kr must have the {kv_lora} columns of weight_uk's latent and an even "
            f"number of rotated ones, not {call.weight_dkv_kr.shape[1]}"
        )
    hidden, q_lora = call.token_x.shape[-1], call.weight_dq.shape[1]
    checks.shape("weight_dq", call.weight_dq, (hidden, q_lora))
    checks.shape("weight_dkv_kr", call.weight_dkv_kr, (hidden, kv_lora + rope))
    checks.shape("weight_uq_qr", call.weight_uq_qr, (q_lora, heads * (nope + rope)))
    tokens = call.token_x.shape[:-1].numel()
    return Sizes(tokens, hidden, q_lora, kv_lora, heads, nope, rope)


def _check_tokens(call: Call, dtype: torch.dtype) -> None:
    if call.weight_quant_mode == 2:
        checks.dtype("token_x", call.token_x, (dtype, torch.int8))
    else:
        checks.dtype("token_x", call.token_x, (dtype,))
    checks.rows("token_x", call.token_x)


def _angles(call: Call, sizes: Sizes) -> tuple[Tensor, Tensor]:
    half = sizes.rope // 2
    lead = call.token_x.shape[:-1]
    if call.rope_cos.shape not in ((*lead, half), (*lead, sizes.rope)):
        raise ArgumentError(
            f"rope_cos must have shape {[*lead, half]} or {[*lead, sizes.rope]}, not "
            f"{list(call.rope_cos.shape)}"
        )
    checks.shape("rope_sin", call.rope_sin, call.rope_cos.shape)
    checks.dtype("rope_cos", call.rope_cos, checks.FLOATS)
    checks.dtype("rope_sin", call.rope_sin, checks.FLOATS)
    cos, sin = (t[..., :half].flatten(0, -2) for t in (call.rope_cos, call.rope_sin))
    return cos, sin


def _slots(call: Call, sizes: Sizes) -> Tensor:
    slots = call.cache_index
    if slots is None:
        raise ArgumentError("cache_index must name the slot of every token with PA_BSND caches")
    checks.dtype("cache_index", slots, checks.INTEGERS)
    if slots.numel() != sizes.tokens:
        raise ArgumentError(
            f"cache_index must hold one slot per token, {sizes.tokens}, not shape "
            f"{list(slots.shape)}"
        )
    return slots.reshape(-1)


def _kv_cache(call: Call, sizes: Sizes, dtype: torch.dtype) -> Tensor:
    packed = call.kv_cache_quant_mode == 3
    if packed and (sizes.kv_lora, sizes.rope) != (LATENT, ROTATED):
        raise ArgumentError(
            f"packed cache rows hold {LATENT} + {ROTATED} dims, not {sizes.kv_lora} + {sizes.rope}"
        )
    width = PACKED if packed else sizes.kv_lora
    return _cache("kv_cache", call.kv_cache, width, torch.int8 if packed else dtype)


def _kr_cache(call: Call, sizes: Sizes, dtype: torch.dtype) -> Tensor | None:
    if call.kv_cache_quant_mode == 3:
        return None
    cache = _cache("kr_cache", call.kr_cache, sizes.rope, dtype)
    if call.kr_cache.shape[:2] != call.kv_cache.shape[:2]:
        raise ArgumentError(
            f"kv_cache and kr_cache must have the same blocks, not {list(call.kv_cache.shape)} "
            f"and {list(call.kr_cache.shape)}"
        )
    return cache


def _cache(name: str, cache: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    checks.dtype(name, cache, (dtype,))
    if cache.ndim != 4 or cache.shape[2:] != (1, width):
        raise ArgumentError(
            f"{name} must be [blocks, block_size, 1, {width}], not {list(cache.shape)}"
        )
    checks.rows(name, cache)
    return cache.squeeze(2)


def _latent(call: Call) -> str:
    if not call.query_norm_flag:
        return "none"
    return "int8" if call.weight_quant_mode and call.query_norm_quantised else "float"
