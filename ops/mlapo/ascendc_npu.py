"""MLA pre-processing: the AscendC kernel of ascendc/ on an NPU.

Limits and arithmetic as of ``emulated``, which runs the same source. Weights are brought into the
kernel's layout at the first call and kept (nz.py). The library is built by ``glm5-ascend ops
build``; has not run on an NPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.ascendc import library
from glm5_ascend.ops.ascendc.limits import HINT, Limit, enforce
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.mlapo.arguments import Inputs, Linear, Outputs, Static
from glm5_ascend.ops.mlapo.nz import fractal_nz

_NAME = "the AscendC kernel of mlapo"
LIMITS: tuple[Limit[Inputs], ...] = (
    Limit(
        "bfloat16 and float16 activations",
        lambda c: c.dtype in (torch.bfloat16, torch.float16),
    ),
    Limit("1 to 1024 tokens", lambda c: c.sizes.tokens <= 1024),
    Limit("weights of whole 32-byte blocks", lambda c: _whole(c)),
)


def forward(call: Inputs) -> Outputs:
    """Queries, and the rows of the caches, of ``call.x``.

    Raises:
        Declined: outside of LIMITS, or sizes that the kernel's tiles do not take.
        BackendUnavailable: the kernels are not built or cannot be loaded.
    """
    enforce(_NAME, LIMITS, call)
    operators: Any = library.load()
    try:
        query, query_scale, query_rope, latent, codes, scale = operators.mlapo(
            *_arguments(call),
            eps_q=call.eps_q,
            eps_kv=call.eps_kv,
            keep_latent=call.latent == "float",
            int8_query=call.quantise_query,
        )
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        if "does not take" not in first:
            raise
        raise Declined(first, HINT) from None
    kept = {
        "none": (None, None),
        "float": (latent, None),
        "int8": (codes, None if call.latent_static is not None else scale),
    }
    scales = query_scale if call.quantise_query else None
    return Outputs(query, query_rope, scales, *kept[call.latent])


def _whole(call: Inputs) -> bool:
    weights = (call.down_q.weight, call.up_q.weight)
    nope = call.absorb.shape[1] % 16 == 0
    return nope and all(w.shape[1] * w.element_size() % 32 == 0 for w in weights)


def _arguments(call: Inputs) -> tuple[Tensor | None, ...]:
    return (
        call.x.contiguous(),
        call.x_scale,
        _point(call.x_static),
        _point(call.latent_static),
        fractal_nz(call.down_q.weight, call.down_kv.weight),
        _columns("scale", call.down_q, call.down_kv),
        _columns("bias", call.down_q, call.down_kv),
        fractal_nz(call.up_q.weight),
        _columns("scale", call.up_q),
        _columns("bias", call.up_q),
        fractal_nz(call.absorb.transpose(1, 2)),
        call.gamma_q,
        call.gamma_kv,
        call.cos.float().contiguous(),
        call.sin.float().contiguous(),
        call.slots.to(torch.int32),
        call.kv_cache,
        call.kr_cache,
    )


def _columns(what: str, *linears: Linear) -> Tensor | None:
    parts = [getattr(linear, what) for linear in linears]
    return None if parts[0] is None else torch.cat(parts)


def _point(static: Static | None) -> Tensor | None:
    if static is None:
        return None
    return torch.stack((static.scale.float().view(()), static.offset.float().view(())))
