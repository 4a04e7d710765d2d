"""Public entry of sparse flash attention."""

from __future__ import annotations

from torch import Tensor

from glm5_ascend.ops import layout
from glm5_ascend.ops.dispatch import select


def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    sparse_indices: Tensor,
    scale_value: float,
    sparse_block_size: int = 1,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    attention_mode: int = 2,
    return_softmax_lse: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of every query token over the keys that ``sparse_indices`` names.

    out = softmax(scale * (query . key + query_rope . key_rope)) value, softmax in F32 (F64 if
    the inputs are F64), with one latent head shared by all query heads (MLA, weights absorbed).

    Args:
        query: [B, S1, H, L] (BSND) or [T, H, L] (TND); L is kv_lora_rank, any size.
        key: latent [B, S2, 1, L], [T2, 1, L] or [blocks, block_size, 1, L] (PA_BSND).
        value: None or the latent again; [.., 1, Lv] in the layout of key.
        sparse_indices: int32 [B, S1, 1, K] or [T, 1, K], first the chosen positions, then -1. -1
            is skipped wherever it stands; the NPU stops at the first one.
        scale_value: softmax scale, (qk_nope_head_dim + qk_rope_head_dim) ** -0.5 for GLM-5.
        sparse_block_size: entry i names tokens i * size up to (i + 1) * size.
        block_table: int [B, max_blocks], PA_BSND only.
        actual_seq_lengths_query: per request for BSND (optional), prefix sums for TND.
        actual_seq_lengths_kv: per request for BSND (optional) and PA_BSND, prefix sums for TND.
        query_rope: [.., H, R] rotated part, or None.
        key_rope: [.., 1, R] in the layout of key, or None.
        sparse_mode: 3 = query i of n ignores positions beyond k_len - n + i; 0 = those beyond
            the last key only.
        attention_mode: 2 (MLA, absorbed) only.
        return_softmax_lse: also return the row maxima and sums of the softmax.

    Returns:
        (out, softmax_max, softmax_sum): out [.., H, Lv] in query's dtype, zero for rows that see
        no key; max and sum F32 [1, T, H] or [B, 1, S1, H] (-inf and 0 for empty rows), or two
        tensors of shape [0].

    Raises:
        ValueError: shapes, layouts or lengths that contradict each other.
        BackendUnavailable: the named backend cannot run here.

    Call signature of torch_npu.npu_sparse_flash_attention; value=None means value = key.
    """
    if attention_mode != 2:
        raise ValueError(f"attention_mode must be 2 (MLA, absorbed), not {attention_mode}")
    if sparse_mode not in (0, 3):
        raise ValueError(f"sparse_mode must be 0 or 3, not {sparse_mode}")
    if sparse_block_size < 1:
        raise ValueError(f"sparse_block_size must be positive, not {sparse_block_size}")
    _check_shapes(query, key, value, sparse_indices)
    _check_rope(query, key, query_rope, key_rope)
    requests, keys = layout.spans(
        query,
        key,
        layout_query,
        layout_kv,
        actual_seq_lengths_query,
        actual_seq_lengths_kv,
        block_table,
    )
    indices = sparse_indices.flatten(0, -2)
    q = [query.flatten(0, -3)]
    k = [key.flatten(0, -2)]
    v = k[0] if value is None or value is key else value.flatten(0, -2)
    if query_rope is not None and key_rope is not None:
        q.append(query_rope.flatten(0, -3))
        k.append(key_rope.flatten(0, -2))
    match select("sparse_flash_attention", backend, query):
        case "reference":
            from glm5_ascend.ops.sparse_flash_attention.reference import forward

            causal = sparse_mode == 3
            out, peak, total = forward(
                q, k, v, indices, scale_value, sparse_block_size, requests, keys, causal=causal
            )
        case other:
            raise NotImplementedError(other)
    out = out.view(*query.shape[:-1], v.shape[-1])
    if not return_softmax_lse:
        return out, peak.new_empty(0), peak.new_empty(0)
    if layout_query == "TND":
        return out, peak[None], total[None]
    return out, peak.view(query.shape[:-1])[:, None], total.view(query.shape[:-1])[:, None]


def _check_shapes(query: Tensor, key: Tensor, value: Tensor | None, sparse_indices: Tensor) -> None:
    if key.shape[-2:] != (1, query.shape[-1]):
        raise ValueError(f"key {tuple(key.shape)} needs one head of {query.shape[-1]}")
    if value is not None and value.shape[:-1] != key.shape[:-1]:
        raise ValueError(f"value {tuple(value.shape)} does not fit key {tuple(key.shape)}")
    if sparse_indices.shape[:-1] != (*query.shape[:-2], 1):
        raise ValueError(
            f"sparse_indices {tuple(sparse_indices.shape)} do not fit query {tuple(query.shape)}"
        )


def _check_rope(
    query: Tensor, key: Tensor, query_rope: Tensor | None, key_rope: Tensor | None
) -> None:
    if query_rope is None and key_rope is None:
        return
    if query_rope is None or key_rope is None:
        raise ValueError("query_rope and key_rope go together")
    width = query_rope.shape[-1]
    if query_rope.shape[:-1] != query.shape[:-1]:
        raise ValueError(f"query_rope {tuple(query_rope.shape)} does not fit {tuple(query.shape)}")
    if key_rope.shape != (*key.shape[:-1], width):
        raise ValueError(f"key_rope {tuple(key_rope.shape)} does not fit {tuple(key.shape)}")
