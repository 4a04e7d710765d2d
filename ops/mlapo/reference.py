"""MLA pre-processing in plain torch, stage by stage as in README.md."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.matmul import int_matmul, linear_rows
from glm5_ascend.ops.mlapo.arguments import Inputs, Linear, Outputs, Static
from glm5_ascend.ops.norm_rope.reference import rms_norm, rotary_interleaved
from glm5_ascend.ops.paged_cache import reference as paged_cache
from glm5_ascend.ops.quant_linear.reference import dynamic_quant


def forward(inputs: Inputs) -> Outputs:
    """Queries, and the rows of the caches, of ``inputs.x``; see README.md."""
    sizes = inputs.sizes
    x, x_scale = inputs.x, inputs.x_scale
    if inputs.down_q.is_int8 and x_scale is None:
        x, x_scale = quantise(x, inputs.x_static)
    q_latent = rms_norm(project(x, x_scale, inputs.down_q, inputs), inputs.gamma_q, inputs.eps_q)
    _write_caches(project(x, x_scale, inputs.down_kv, inputs), inputs)

    codes, scale = q_latent, None
    if inputs.up_q.is_int8:
        codes, scale = quantise(q_latent, inputs.latent_static)
    query = project(codes, scale, inputs.up_q, inputs).view(sizes.tokens, sizes.heads, -1)
    nope, rope = torch.split(query, [sizes.nope, sizes.rope], -1)
    query, query_scale = absorb(nope, inputs.absorb), None
    if inputs.quantise_query:
        query, query_scale = dynamic_quant(query)
    returned = {"none": None, "float": q_latent, "int8": codes}[inputs.latent]
    return Outputs(
        query,
        rotary_interleaved(rope, inputs.cos, inputs.sin),
        query_scale,
        returned,
        scale if inputs.latent == "int8" else None,
    )


def quantise(x: Tensor, static: Static | None) -> tuple[Tensor, Tensor | None]:
    """(int8 codes of x [T, K], F32 scales [T, 1], or None where they are static)."""
    if static is None:
        return dynamic_quant(x)
    shifted = x.float() / static.scale.float() + static.offset.float()
    return shifted.round_().clamp_(-128, 127).to(torch.int8), None


def project(x: Tensor, scale: Tensor | None, linear: Linear, inputs: Inputs) -> Tensor:
    """[T, N] in the activations' dtype, of float x or of codes with their scale."""
    if linear.scale is None:
        return linear_rows(_wide(x), _wide(linear.weight)).to(x.dtype)
    total = int_matmul(x, linear.weight)
    if linear.bias is not None:
        total = total + linear.bias
    y = total.float() * linear.scale
    return (y if scale is None else y * scale).to(inputs.dtype)


def absorb(nope: Tensor, weight: Tensor) -> Tensor:
    """[T, heads, kv_lora] of nope [T, heads, nope] and weight [heads, nope, kv_lora]."""
    heads = zip(_wide(nope).unbind(1), _wide(weight), strict=True)
    return torch.stack([linear_rows(q, w.T) for q, w in heads], 1).to(nope.dtype)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _write_caches(latent_and_key: Tensor, inputs: Inputs) -> None:
    sizes = inputs.sizes
    latent, key = torch.split(latent_and_key, [sizes.kv_lora, sizes.rope], -1)
    latent = rms_norm(latent, inputs.gamma_kv, inputs.eps_kv)
    key = rotary_interleaved(key, inputs.cos, inputs.sin)
    if inputs.kr_cache is None:
        paged_cache.write_kv_rows(inputs.kv_cache, latent, key, inputs.slots)
    else:
        paged_cache.forward(inputs.kv_cache, latent, inputs.slots)
        paged_cache.forward(inputs.kr_cache, key, inputs.slots)
