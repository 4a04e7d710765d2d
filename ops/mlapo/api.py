"""Public function of the MLA pre-processing."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from glm5_ascend.ops.mlapo import operator


def mlapo(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    *,
    cache_index: Tensor,
    dequant_scale_x: Tensor | None = None,
    dequant_scale_w_dq: Tensor | None = None,
    dequant_scale_w_uq_qr: Tensor | None = None,
    dequant_scale_w_dkv_kr: Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-5,
    rmsnorm_epsilon_ckv: float = 1e-5,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    weight_quant_mode: int = 0,
    kv_cache_quant_mode: int = 0,
    query_quant_mode: int = 0,
    ckvkr_repo_mode: int = 0,
    quant_scale_repo_mode: int = 0,
    quant_scale_x: Tensor | None = None,
    quant_offset_x: Tensor | None = None,
    quant_bias_dq: Tensor | None = None,
    quant_bias_dkv_kr: Tensor | None = None,
    quant_scale_cq: Tensor | None = None,
    quant_offset_cq: Tensor | None = None,
    quant_bias_uq_qr: Tensor | None = None,
    query_norm_quantised: bool = True,
    backend: str = "auto",
    **unsupported: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Everything between the normalised input of a layer and sparse attention, in one call.

    c_q = RMSNorm(x W_DQ), [q_nope | q_rope] = c_q W_UQ_QR per head, query = q_nope W_UK,
    query_rope = rotate(q_rope); [c_kv | k] = x W_DKV_KR, and the rows RMSNorm(c_kv) and rotate(k)
    go into the caches. README.md has the stages and where values are rounded.

    Sizes: T tokens, H hidden, Q q_lora, N heads, D nope, R rotated dims, L kv_lora. "dtype" is the
    activations' dtype: F16, BF16, F32, or F64 (float weights only).

    Args:
        token_x: [T, H] or [B, S, H], rows at one distance; in dtype, or int8 codes
            (weight_quant_mode 2) with ``dequant_scale_x``.
        weight_dq: [H, Q], like the other weights any strides: ``.T`` of the checkpoint's
            q_a_proj.weight.
        weight_uq_qr: [Q, N * (D + R)], ``.T`` of q_b_proj.weight.
        weight_uk: [N, D, L] in dtype: the nope rows of kv_b_proj.weight.
        weight_dkv_kr: [H, L + R], ``.T`` of kv_a_proj_with_mqa.weight.
        rmsnorm_gamma_cq, rmsnorm_gamma_ckv: [Q], [L] in dtype.
        rope_sin, rope_cos: float [.., R / 2] of ``rotary_table``, or torch_npu's [.., R], the same
            twice side by side; leading axes of token_x. Neighbouring pairs rotate in place, so
            weights stay as the checkpoint has them.
        kv_cache: dtype [blocks, block_size, 1, L], rows dense and at one distance; written. With
            kv_cache_quant_mode 3 int8 [.., 656], packed rows as of ``write_kv_rows``.
        kr_cache: dtype [blocks, block_size, 1, R]; written. Not used with mode 3.
        cache_index: int [T] or [B, S], slot of every token; -1 is skipped.
        dequant_scale_x: F32, one per token, of an int8 token_x.
        dequant_scale_w_dq, dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr: float [N'] or [1, N'] or
            [N', 1] per output column of an int8 weight; with static activations the checkpoint's
            ``deq_scale``, which has the activations' scale in it.
        rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv: engines take rms_norm_eps, transformers 1e-6.
        cache_mode: "PA_BSND" only.
        query_norm_flag: return c_q.
        weight_quant_mode: 0 = float weights; 1 = weight_uq_qr is int8; 2 = weight_dq and
            weight_dkv_kr too. int8 weights take activations quantised per token (scale max|x| /
            127), or statically where the following six are given.
        quant_scale_x, quant_offset_x: one element each, quantise x: ``input_scale`` and
            ``input_offset`` of the checkpoint's q_a and kv_a (which share them).
        quant_bias_dq, quant_bias_dkv_kr: int32 [N'], the checkpoint's ``quant_bias``.
        quant_scale_cq, quant_offset_cq, quant_bias_uq_qr: the same for c_q and q_b.
        kv_cache_quant_mode: 0, or 3 = packed rows, for which ckvkr_repo_mode and
            quant_scale_repo_mode are 1.
        query_quant_mode: 1 = return query as int8 per token and head.
        query_norm_quantised: with int8 weight_uq_qr, return c_q as the codes that it was
            multiplied with, not in dtype.
        unsupported: torch_npu's other arguments, which must have their defaults.

    Returns:
        (query [.., N, L] in dtype or int8, query_rope [.., N, R] in dtype, dequant_scale_q_nope F32
        [.., N, 1], query_norm [.., Q] in dtype or int8, dequant_scale_q_norm F32 [.., 1]); of
        shape [0] what the modes do not call for. Static codes have no dequant_scale_q_norm.

    Raises:
        ArgumentError: arguments that contradict each other or the above, or a slot outside the
            caches; nothing is written then.
        BackendUnavailable: the named backend cannot run here.

    Call signature of torch_npu.npu_mla_prolog_v3; static quantisation as vllm-ascend's
    mla_preprocess. Formula: DeepSeek-V2 report, section 2.1, with absorbed weights.
    """
    results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = operator.MLAPO(
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr,
        rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin, rope_cos, kv_cache, kr_cache,
        cache_index=cache_index,
        dequant_scale_x=dequant_scale_x, dequant_scale_w_dq=dequant_scale_w_dq,
        dequant_scale_w_uq_qr=dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr=dequant_scale_w_dkv_kr,
        rmsnorm_epsilon_cq=rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv=rmsnorm_epsilon_ckv,
        cache_mode=cache_mode, query_norm_flag=query_norm_flag, weight_quant_mode=weight_quant_mode,
        kv_cache_quant_mode=kv_cache_quant_mode, query_quant_mode=query_quant_mode,
        ckvkr_repo_mode=ckvkr_repo_mode, quant_scale_repo_mode=quant_scale_repo_mode,
        quant_scale_x=quant_scale_x, quant_offset_x=quant_offset_x, quant_bias_dq=quant_bias_dq,
        quant_bias_dkv_kr=quant_bias_dkv_kr, quant_scale_cq=quant_scale_cq,
        quant_offset_cq=quant_offset_cq, quant_bias_uq_qr=quant_bias_uq_qr,
        query_norm_quantised=query_norm_quantised, backend=backend, **unsupported,
    )  # fmt: skip
    return results
