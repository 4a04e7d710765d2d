"""The arguments of mlapo by name, and which of their values exist."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from glm5_ascend.ops import checks
from glm5_ascend.ops.errors import ArgumentError
from glm5_ascend.ops.paged_cache.rows import TILE


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


_TENSORS = tuple(
    name for name, kind in Call.__annotations__.items() if str(kind).startswith("Tensor")
)


def check_modes(call: Call) -> None:
    """Refuse modes that this operator does not have."""
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


def check_devices(call: Call) -> None:
    """Refuse tensors on different devices."""
    device = call.token_x.device
    for name in _TENSORS:
        value = getattr(call, name)
        if value is not None and value.device != device:
            checks.device(name, value, "token_x", device)
