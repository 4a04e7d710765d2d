"""Checks of mlapo's arguments, and their translation into what the backends take."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.ops import checks
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.mlapo.arguments import Inputs, Linear, Sizes, Static
from glm5_ascend.ops.paged_cache.rows import LATENT, PACKED, ROTATED, TILE

_SCALES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments by their names; see api.mlapo."""

    token_x: Tensor
    weight_dq: Tensor
    weight_uq_qr: Tensor
    weight_uk: Tensor
    weight_dkv_kr: Tensor
    rmsnorm_gamma_cq: Tensor
    rmsnorm_gamma_ckv: Tensor
    rope_sin: Tensor
    rope_cos: Tensor
    kv_cache: Tensor
    kr_cache: Tensor
    cache_index: Tensor | None = None
    dequant_scale_x: Tensor | None = None
    dequant_scale_w_dq: Tensor | None = None
    dequant_scale_w_uq_qr: Tensor | None = None
    dequant_scale_w_dkv_kr: Tensor | None = None
    quant_scale_ckv: Tensor | None = None
    quant_scale_ckr: Tensor | None = None
    smooth_scales_cq: Tensor | None = None
    actual_seq_len: Tensor | None = None
    k_nope_clip_alpha: Tensor | None = None
    rmsnorm_epsilon_cq: float = 1e-5
    rmsnorm_epsilon_ckv: float = 1e-5
    cache_mode: str = "PA_BSND"
    query_norm_flag: bool = False
    weight_quant_mode: int = 0
    kv_cache_quant_mode: int = 0
    query_quant_mode: int = 0
    ckvkr_repo_mode: int = 0
    quant_scale_repo_mode: int = 0
    tile_size: int = TILE
    qc_qr_scale: float = 1.0
    kc_scale: float = 1.0
    token_x_dtype: int | None = None
    weight_dq_dtype: int | None = None
    weight_uq_qr_dtype: int | None = None
    weight_dkv_kr_dtype: int | None = None
    kv_cache_dtype: int | None = None
    quant_scale_x: Tensor | None = None
    quant_offset_x: Tensor | None = None
    quant_bias_dq: Tensor | None = None
    quant_bias_dkv_kr: Tensor | None = None
    quant_scale_cq: Tensor | None = None
    quant_offset_cq: Tensor | None = None
    quant_bias_uq_qr: Tensor | None = None
    query_norm_quantised: bool = True


# Arguments of torch_npu that only another cache format, another model or nothing uses.
_UNSUPPORTED = {
    "quant_scale_ckv": None,
    "quant_scale_ckr": None,
    "smooth_scales_cq": None,
    "actual_seq_len": None,
    "k_nope_clip_alpha": None,
    "qc_qr_scale": 1.0,
    "kc_scale": 1.0,
    "token_x_dtype": None,
    "weight_dq_dtype": None,
    "weight_uq_qr_dtype": None,
    "weight_dkv_kr_dtype": None,
    "kv_cache_dtype": None,
}


def check(call: Call) -> Inputs:
    """Everything that fake tensors have too: shapes, dtypes, strides, devices, modes."""
    _check_modes(call)
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
    _check_devices(call)
    x_static = _static(call, "x", mode == 2 and call.token_x.dtype != torch.int8)
    latent_static = _static(call, "cq", mode > 0)
    cos, sin = _angles(call, sizes)
    return Inputs(
        sizes=sizes,
        dtype=dtype,
        x=call.token_x.flatten(0, -2),
        x_scale=_token_scales(call, sizes),
        x_static=x_static,
        latent_static=latent_static,
        down_q=_linear(call, "dq", dtype, mode == 2, x_static),
        down_kv=_linear(call, "dkv_kr", dtype, mode == 2, x_static),
        up_q=_linear(call, "uq_qr", dtype, mode > 0, latent_static),
        absorb=call.weight_uk,
        gamma_q=call.rmsnorm_gamma_cq,
        gamma_kv=call.rmsnorm_gamma_ckv,
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
    low, high = (int(slot) for slot in torch.aminmax(inputs.slots))
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


def _check_modes(call: Call) -> None:
    checks.one_of("weight_quant_mode", call.weight_quant_mode, (0, 1, 2))
    checks.one_of("kv_cache_quant_mode", call.kv_cache_quant_mode, (0, 3))
    checks.one_of("query_quant_mode", call.query_quant_mode, (0, 1))
    checks.one_of("cache_mode", call.cache_mode, ("PA_BSND",))
    checks.one_of("tile_size", call.tile_size, (TILE,))
    together = int(call.kv_cache_quant_mode == 3)
    for name in ("ckvkr_repo_mode", "quant_scale_repo_mode"):
        if getattr(call, name) != together:
            raise ArgumentError(
                f"{name} must be {together} with kv_cache_quant_mode {call.kv_cache_quant_mode}, "
                f"not {getattr(call, name)}"
            )
    for name, only in _UNSUPPORTED.items():
        if getattr(call, name) is not only and getattr(call, name) != only:
            raise ArgumentError(f"{name} is not supported: it must be {only}")


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


def _token_scales(call: Call, sizes: Sizes) -> Tensor | None:
    scale = call.dequant_scale_x
    if (scale is not None) != (call.token_x.dtype == torch.int8):
        raise ArgumentError("dequant_scale_x goes with an int8 token_x, and with no other")
    if scale is None:
        return None
    checks.dtype("dequant_scale_x", scale, (torch.float32,))
    if scale.numel() != sizes.tokens:
        raise ArgumentError(
            f"dequant_scale_x must hold one scale per token, {sizes.tokens}, not shape "
            f"{list(scale.shape)}"
        )
    return scale.reshape(-1, 1)


def _static(call: Call, point: str, allowed: bool) -> Static | None:
    scale = getattr(call, f"quant_scale_{point}")
    offset = getattr(call, f"quant_offset_{point}")
    if scale is None and offset is None:
        return None
    if scale is None or offset is None or not allowed:
        raise ArgumentError(
            f"quant_scale_{point} and quant_offset_{point} go together, with int8 weights and "
            "float activations only"
        )
    checks.dtype(f"quant_scale_{point}", scale, _SCALES)
    checks.dtype(f"quant_offset_{point}", offset, (torch.int8, *_SCALES))
    for name, value in ((f"quant_scale_{point}", scale), (f"quant_offset_{point}", offset)):
        if value.numel() != 1:
            raise ArgumentError(f"{name} must have one element, not shape {list(value.shape)}")
    return Static(scale, offset)


def _linear(
    call: Call, name: str, dtype: torch.dtype, quantised: bool, static: Static | None
) -> Linear:
    weight, scale = getattr(call, f"weight_{name}"), getattr(call, f"dequant_scale_w_{name}")
    bias = getattr(call, f"quant_bias_{name}")
    checks.dtype(f"weight_{name}", weight, (torch.int8 if quantised else dtype,))
    if (scale is not None) != quantised:
        raise ArgumentError(f"dequant_scale_w_{name} goes with an int8 weight_{name}")
    if (bias is not None) != (static is not None):
        raise ArgumentError(
            f"quant_bias_{name} goes with statically quantised activations, and they with it"
        )
    if scale is None:
        return Linear(weight.T)
    columns = weight.shape[1]
    checks.dtype(f"dequant_scale_w_{name}", scale, _SCALES)
    if scale.numel() != columns or scale.ndim > 2:
        raise ArgumentError(
            f"dequant_scale_w_{name} must be [1, {columns}], [{columns}, 1] or [{columns}], not "
            f"shape {list(scale.shape)}"
        )
    if bias is not None:
        checks.dtype(f"quant_bias_{name}", bias, (torch.int32,))
        checks.shape(f"quant_bias_{name}", bias, (columns,))
    return Linear(weight.T, scale.reshape(-1).float(), bias)


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


def _check_devices(call: Call) -> None:
    for name in Call.__slots__:
        value = getattr(call, name)
        if isinstance(value, Tensor):
            checks.device(name, value, "token_x", call.token_x.device)
