"""Public entry of the lightning indexer."""

from __future__ import annotations

from torch import Tensor

from glm5_ascend.ops import layout
from glm5_ascend.ops.dispatch import select


def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    backend: str = "auto",
) -> Tensor:
    """Positions of the ``sparse_count`` best keys of every query token.

    score(t, s) = sum_h weights[t, h] * max(0, query[t, h] . key[s]), in F32 (F64 if the inputs
    are F64). The model folds its positive constants into ``weights`` or drops them.

    Args:
        query: [B, S1, H, D] (BSND) or [T, H, D] (TND), any float dtype.
        key: [B, S2, 1, D], [T2, 1, D] or [blocks, block_size, 1, D] (PA_BSND).
        weights: [B, S1, H] or [T, H].
        actual_seq_lengths_query: per request for BSND (optional), prefix sums for TND.
        actual_seq_lengths_key: per request for BSND (optional) and PA_BSND, prefix sums for TND.
        block_table: int [B, max_blocks], PA_BSND only.
        sparse_count: how many positions a row holds.
        sparse_mode: 3 = causal, right aligned: query i of n sees keys 0 .. k_len - n + i;
            0 = every key.

    Returns:
        int32 [B, S1, 1, sparse_count] or [T, 1, sparse_count]: positions inside the request,
        ascending, padded with -1. Equal scores: the lower position wins. A NaN score counts as
        minus infinity. Rows of no request and rows without a visible key hold -1 only.

    Raises:
        ValueError: shapes, layouts or lengths that contradict each other.
        BackendUnavailable: the named backend cannot run here.

    Formula: DeepSeek-V3.2 report, section 2.1; call signature of torch_npu.npu_lightning_indexer.
    """
    if query.shape[:-1] != weights.shape:
        raise ValueError(f"weights {tuple(weights.shape)} do not fit query {tuple(query.shape)}")
    if key.shape[-2:] != (1, query.shape[-1]):
        raise ValueError(f"key {tuple(key.shape)} needs one head of {query.shape[-1]}")
    if sparse_mode not in (0, 3):
        raise ValueError(f"sparse_mode must be 0 or 3, not {sparse_mode}")
    if sparse_count < 1:
        raise ValueError(f"sparse_count must be positive, not {sparse_count}")
    requests, keys = layout.spans(
        query,
        key,
        layout_query,
        layout_key,
        actual_seq_lengths_query,
        actual_seq_lengths_key,
        block_table,
    )
    rows = query.flatten(0, -3), key.flatten(0, -2), weights.flatten(0, -2)
    match select("lightning_indexer", backend, query):
        case "reference":
            from glm5_ascend.ops.lightning_indexer.reference import forward

            indices = forward(*rows, requests, keys, sparse_count, causal=sparse_mode == 3)
        case other:
            raise NotImplementedError(other)
    return indices.view(*query.shape[:-2], 1, sparse_count)
