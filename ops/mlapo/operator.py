"""Schema, kernel and fake kernel of mlapo."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops import dispatch
from glm5_ascend.ops.mlapo.arguments import Inputs, Outputs
from glm5_ascend.ops.mlapo.call import Call
from glm5_ascend.ops.mlapo.check import check, check_values
from glm5_ascend.ops.registry import define
from glm5_ascend.ops.tracing import passes_errors

# torch_npu's npu_mla_prolog_v3; what follows kv_cache_dtype is ours.
SCHEMA = (
    "mlapo(Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk, "
    "Tensor weight_dkv_kr, Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin, "
    "Tensor rope_cos, Tensor(a!) kv_cache, Tensor(b!) kr_cache, *, Tensor? cache_index=None, "
    "Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None, "
    "Tensor? dequant_scale_w_uq_qr=None, Tensor? dequant_scale_w_dkv_kr=None, "
    "Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, Tensor? smooth_scales_cq=None, "
    "Tensor? actual_seq_len=None, Tensor? k_nope_clip_alpha=None, "
    "float rmsnorm_epsilon_cq=1e-05, float rmsnorm_epsilon_ckv=1e-05, "
    'str cache_mode="PA_BSND", bool query_norm_flag=False, int weight_quant_mode=0, '
    "int kv_cache_quant_mode=0, int query_quant_mode=0, int ckvkr_repo_mode=0, "
    "int quant_scale_repo_mode=0, int tile_size=128, float qc_qr_scale=1.0, float kc_scale=1.0, "
    "int? token_x_dtype=None, int? weight_dq_dtype=None, int? weight_uq_qr_dtype=None, "
    "int? weight_dkv_kr_dtype=None, int? kv_cache_dtype=None, "
    "Tensor? quant_scale_x=None, Tensor? quant_offset_x=None, Tensor? quant_bias_dq=None, "
    "Tensor? quant_bias_dkv_kr=None, Tensor? quant_scale_cq=None, Tensor? quant_offset_cq=None, "
    "Tensor? quant_bias_uq_qr=None, bool query_norm_quantised=True, "
    'str backend="auto") -> (Tensor, Tensor, Tensor, Tensor, Tensor)'
)
Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _kernel(*tensors: Any, backend: str = "auto", **options: Any) -> Five:
    call = Call(*tensors, **options)
    inputs = check(call)
    check_values(call, inputs)
    backend_module = dispatch.load("mlapo", backend, call.token_x)
    if not inputs.sizes.tokens:
        return _empty(call, inputs)
    outputs: Outputs = backend_module.forward(inputs)
    lead = call.token_x.shape[:-1]

    def shaped(x: Tensor | None, dtype: torch.dtype) -> Tensor:
        if x is None:
            return outputs.query.new_empty(0, dtype=dtype)
        return x.view(*lead, *x.shape[1:]) if len(lead) > 1 else x

    return (
        shaped(outputs.query, inputs.dtype),
        shaped(outputs.query_rope, inputs.dtype),
        shaped(outputs.query_scale, torch.float32),
        shaped(outputs.latent, inputs.dtype),
        shaped(outputs.latent_scale, torch.float32),
    )


def _fake(*tensors: Any, backend: str = "auto", **options: Any) -> Five:
    call = Call(*tensors, **options)
    return _empty(call, check(call))


def _empty(call: Call, inputs: Inputs) -> Five:
    """Results of the right shapes and dtypes, unfilled."""
    sizes, lead = inputs.sizes, call.token_x.shape[:-1]

    def empty(dtype: torch.dtype, wanted: bool, *shape: int) -> Tensor:
        return call.token_x.new_empty((*lead, *shape) if wanted else (0,), dtype=dtype)

    codes = inputs.latent == "int8"
    return (
        empty(
            torch.int8 if inputs.quantise_query else inputs.dtype, True, sizes.heads, sizes.kv_lora
        ),
        empty(inputs.dtype, True, sizes.heads, sizes.rope),
        empty(torch.float32, inputs.quantise_query, sizes.heads, 1),
        empty(torch.int8 if codes else inputs.dtype, inputs.latent != "none", sizes.q_lora),
        empty(torch.float32, codes and inputs.latent_static is None, 1),
    )


MLAPO = define(SCHEMA, _kernel, passes_errors(_fake))
