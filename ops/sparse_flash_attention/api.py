"""Public functions of sparse flash attention."""

from __future__ import annotations

from torch import Tensor

from glm5_ascend.ops.checks import UNLIMITED
from glm5_ascend.ops.sparse_flash_attention import operator


def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    attention_mode: int = 2,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of every query token over the keys that ``sparse_indices`` names.

    out = softmax(scale * (query . key + query_rope . key_rope)) value, softmax in F32 (F64 if
    the inputs are F64), with one latent head shared by all query heads (MLA, weights absorbed).

    Args:
        query: [B, S1, H, L] (BSND) or [T, H, L] (TND), any float dtype, which every float
            argument shares; L is kv_lora_rank, any size.
        key: latent [B, S2, 1, L], [T2, 1, L] or [blocks, block_size, 1, L] (PA_BSND; block_size a
            multiple of 16 up to 1024). Its rows must lie at one distance, which may exceed L.
        value: None or the latent again; [.., 1, Lv] in the layout of key, strides likewise.
        sparse_indices: int32 [B, S1, 1, K] or [T, 1, K], first the chosen positions, then -1. -1
            is skipped wherever it stands; the NPU stops at the first one.
        scale_value: softmax scale, (qk_nope_head_dim + qk_rope_head_dim) ** -0.5 for GLM-5.
        block_table: int32 [B, max_blocks], PA_BSND only.
        actual_seq_lengths_query: int [B] per request for BSND (optional), prefix sums for TND.
        actual_seq_lengths_kv: int [B] per request for BSND (optional) and PA_BSND, prefix sums
            for TND.
        query_rope: [.., H, R] rotated part, or None.
        key_rope: [.., 1, R] in the layout of key, strides likewise, or None.
        sparse_block_size: entry i names tokens i * size up to (i + 1) * size.
        sparse_mode: 3 = query i of n ignores positions beyond k_len - n + i; 0 = every key.
        pre_tokens, next_tokens: torch_npu's windows; only 2**63 - 1 (none) is accepted.
        attention_mode: 2 (MLA, absorbed) only. The default of torch_npu and of
            ``torch.ops.glm5_ascend.sparse_flash_attention`` is 0, which neither can compute.
        return_softmax_lse: also return the row maxima and sums of the softmax.
        sinks: must be None.

    The last axis of every tensor must be dense. All are on one device, the lengths there or on
    the CPU.

    Returns:
        (out, softmax_max, softmax_sum): out [.., H, Lv] in query's dtype, zero for rows that see
        no key; max and sum F32 [1, T, H] or [B, 1, S1, H] (-inf and 0 for empty rows), or two
        tensors of shape [0].

    Raises:
        ArgumentError: arguments that contradict each other or the above, or an index that is
            neither -1 nor a position of its request.
        BackendUnavailable: the named backend cannot run here.

    Call signature of torch_npu.npu_sparse_flash_attention; value=None means value = key.
    """
    out, peak, total = operator.FLOAT(
        query,
        key,
        value,
        sparse_indices,
        scale_value,
        block_table=block_table,
        actual_seq_lengths_query=actual_seq_lengths_query,
        actual_seq_lengths_kv=actual_seq_lengths_kv,
        query_rope=query_rope,
        key_rope=key_rope,
        sparse_block_size=sparse_block_size,
        layout_query=layout_query,
        layout_kv=layout_kv,
        sparse_mode=sparse_mode,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        attention_mode=attention_mode,
        return_softmax_lse=return_softmax_lse,
        sinks=sinks,
        backend=backend,
    )
    return out, peak, total


def kv_quant_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    key_quant_mode: int = 2,
    value_quant_mode: int = 2,
    *,
    key_dequant_scale: Tensor | None = None,
    value_dequant_scale: Tensor | None = None,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    attention_mode: int = 2,
    quant_scale_repo_mode: int = 1,
    tile_size: int = 128,
    rope_head_dim: int = 64,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """``sparse_flash_attention`` over packed rows of int8 latents (``write_kv_rows``) or e4m3 ones.

    A row becomes BF16 first (latent = code * scale in F32, then rounded); the rest is as there.

    Args:
        query: float [B, S1, H, 576] or [T, H, 576]: latent part, then rotated part.
        key: int8 or uint8 [.., 1, 656] in one of the key layouts: 512 int8 codes | 64 BF16
            rotated dims | 4 F32 scales of 128 codes; or float8_e4m3fn of the same width (backends
            ``reference`` and ``triton`` only), FlashMLA's and vLLM's row: 512 e4m3 codes | 4 F32
            scales | 64 BF16 rotated dims. Its rows must lie at one distance.
        value: key itself.
        key_quant_mode, value_quant_mode: 2 (per tile) only.
        key_dequant_scale, value_dequant_scale, key_dtype, value_dtype: must be None.
        quant_scale_repo_mode: 1 (scales in the rows) only.
        tile_size, rope_head_dim: 128 and 64 only.
        others: as of ``sparse_flash_attention``.

    Returns:
        out [.., H, 512] in query's dtype.

    Raises:
        ArgumentError: arguments that contradict each other or the above.
        Declined: e4m3 rows with a backend that does not take them.
        BackendUnavailable: the named backend cannot run here.

    Call signature of torch_npu.npu_kv_quant_sparse_flash_attention.
    """
    out: Tensor = operator.QUANT(
        query,
        key,
        value,
        sparse_indices,
        scale_value,
        key_quant_mode,
        value_quant_mode,
        key_dequant_scale=key_dequant_scale,
        value_dequant_scale=value_dequant_scale,
        block_table=block_table,
        actual_seq_lengths_query=actual_seq_lengths_query,
        actual_seq_lengths_kv=actual_seq_lengths_kv,
        sparse_block_size=sparse_block_size,
        layout_query=layout_query,
        layout_kv=layout_kv,
        sparse_mode=sparse_mode,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        attention_mode=attention_mode,
        quant_scale_repo_mode=quant_scale_repo_mode,
        tile_size=tile_size,
        rope_head_dim=rope_head_dim,
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        backend=backend,
    )
    return out
