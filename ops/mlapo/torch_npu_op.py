"""MLA pre-processing by torch_npu's npu_mla_prolog_v3, which does not take GLM-5's sizes.

What it takes is in LIMITS, from its documentation in torch_npu 2.13.0. That leaves open which pairs
of dims it rotates. Assumed here: neighbouring ones, as its sibling npu_interleave_rope does, with
the first of all pairs in the first half of the result; they are put back in place afterwards.
Because of this assumption ``auto`` never takes this backend. Has not run on an NPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.errors import BackendUnavailable
from glm5_ascend.ops.ascendc import vendor
from glm5_ascend.ops.ascendc.limits import Limit, broken, enforce
from glm5_ascend.ops.mlapo.arguments import Inputs, Linear, Outputs

NAME = "npu_mla_prolog_v3"
_FRACTAL_NZ = 29
_LATENTS = {False: ("none", "float"), True: ("none", "int8")}


def _caches_fit(call: Inputs) -> bool:
    caches = [cache for cache in (call.kv_cache, call.kr_cache) if cache is not None]
    return all(cache.is_contiguous() and cache.shape[1] in (16, 128) for cache in caches)


LIMITS: tuple[Limit[Inputs], ...] = (
    Limit("a q_lora size of 1536 (GLM-5 has 2048)", lambda c: c.sizes.q_lora == 1536),
    Limit("unrotated parts of 128 dims (GLM-5 has 192)", lambda c: c.sizes.nope == 128),
    Limit("a kv_lora size of 512", lambda c: c.sizes.kv_lora == 512),
    Limit("rotated parts of 64 dims", lambda c: c.sizes.rope == 64),
    Limit("hidden sizes of 6144, 7168 and 7680", lambda c: c.sizes.hidden in (6144, 7168, 7680)),
    Limit(
        "1, 2, 4 .. 128 heads", lambda c: c.sizes.heads in tuple(1 << power for power in range(8))
    ),
    Limit("at most 1048576 tokens", lambda c: c.sizes.tokens <= 1 << 20),
    Limit("bfloat16 activations", lambda c: c.dtype == torch.bfloat16),
    Limit("no static scales", lambda c: c.x_static is None and c.latent_static is None),
    Limit(
        "int8 codes of x where weight_dq is int8",
        lambda c: c.down_q.is_int8 == (c.x.dtype == torch.int8),
    ),
    Limit(
        "caches of two tensors without gaps with 16 or 128 rows per block",
        lambda c: c.kr_cache is not None and _caches_fit(c),
    ),
    Limit("a query in bfloat16 with such caches", lambda c: not c.quantise_query),
    Limit(
        "a q latent in the format that weight_uq_qr multiplies",
        lambda c: c.latent in _LATENTS[c.up_q.is_int8],
    ),
    Limit("a slot for every token, not -1", lambda c: not bool((c.slots < 0).any())),
)
# id of a weight's storage -> (place, version) of a view -> weight in FRACTAL_NZ.
_cast: dict[int, dict[Hashable, Tensor]] = {}


def refuses(function: str, call: Inputs) -> str | None:
    """Why ``auto`` does not take it: a limit, or that its rotation is not documented."""
    return broken(NAME, LIMITS, call) or (
        f"the documentation of {NAME} does not say which pairs it rotates"
    )


def forward(call: Inputs) -> Outputs:
    """Queries, and the rows of the caches, of ``call.x``.

    Raises:
        Declined: outside of LIMITS.
        BackendUnavailable: torch_npu cannot be imported here, or returns no q latent.
    """
    enforce(NAME, LIMITS, call)
    npu, sizes = vendor.operators(), call.sizes
    cos, sin = (torch.cat((t, t), -1).to(call.dtype) for t in (call.cos, call.sin))
    assert call.kr_cache is not None
    query, rotated, _, latent, latent_scale = npu.npu_mla_prolog_v3(
        call.x.contiguous(),
        _nz(npu, call.down_q.weight),
        _nz(npu, call.up_q.weight),
        call.absorb.contiguous(),
        _nz(npu, call.down_kv.weight),
        call.gamma_q,
        call.gamma_kv,
        sin,
        cos,
        call.kv_cache.unsqueeze(2),
        call.kr_cache.unsqueeze(2),
        cache_index=call.slots.long(),
        dequant_scale_x=call.x_scale,
        dequant_scale_w_dq=_scale(call.down_q),
        dequant_scale_w_uq_qr=_scale(call.up_q),
        dequant_scale_w_dkv_kr=_scale(call.down_kv),
        rmsnorm_epsilon_cq=call.eps_q,
        rmsnorm_epsilon_ckv=call.eps_kv,
        query_norm_flag=call.latent != "none",
        weight_quant_mode=int(call.up_q.is_int8) + int(call.down_q.is_int8),
    )
    rows = call.kr_cache.view(-1, sizes.rope)
    rows[call.slots] = _neighbours(rows[call.slots])
    if call.latent == "none":
        return Outputs(query, _neighbours(rotated), None, None, None)
    if latent.shape != (sizes.tokens, sizes.q_lora):
        raise BackendUnavailable(
            f"this torch_npu's {NAME} returns no q latent", "call mlapo without query_norm_flag"
        )
    scale = latent_scale.view(-1, 1) if call.latent == "int8" else None
    return Outputs(query, _neighbours(rotated), None, latent, scale)


def _scale(linear: Linear) -> Tensor | None:
    return None if linear.scale is None else linear.scale[None]


def _neighbours(halves: Tensor) -> Tensor:
    """[.., 2 n] with the two of a pair side by side, from all first ones and all second ones."""
    return halves.view(*halves.shape[:-1], 2, -1).transpose(-1, -2).flatten(-2)


def _nz(npu: Any, weight: Tensor) -> Tensor:
    """FRACTAL_NZ of the transpose of ``weight`` [N, K]; kept as long as its storage."""
    storage = weight.untyped_storage()
    views = _cast.get(id(storage))
    if views is None:
        views = _cast[id(storage)] = {}
        weakref.finalize(storage, _cast.pop, id(storage), None).atexit = False
    place = (weight.data_ptr(), weight.shape, weight.stride())
    version = -1 if weight.is_inference() else weight._version
    if (place, version) not in views:
        for old in [key for key in views if isinstance(key, tuple) and key[0] == place]:
            del views[old]
        views[place, version] = npu.npu_format_cast(weight.T.contiguous(), _FRACTAL_NZ)
    return views[place, version]
