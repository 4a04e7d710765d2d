"""Public functions of the lightning indexer."""

from __future__ import annotations

from torch import Tensor

from glm5_ascend.ops.checks import UNLIMITED
from glm5_ascend.ops.lightning_indexer import operator


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
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    return_value: bool = False,
    sorted: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Positions of the ``sparse_count`` best keys of every query token.

    score(t, s) = sum_h weights[t, h] * max(0, query[t, h] . key[s]), in F32 (F64 if the inputs
    are F64). The model folds its positive constants into ``weights`` or drops them.

    Args:
        query: [B, S1, H, D] (BSND) or [T, H, D] (TND), any float dtype.
        key: [B, S2, 1, D], [T2, 1, D] or [blocks, block_size, 1, D] (PA_BSND; block_size a
            multiple of 16 up to 1024); dtype of query. Its rows must lie at one distance, which
            may exceed D.
        weights: [B, S1, H] or [T, H] in query's dtype or F32.
        actual_seq_lengths_query: int [B] per request for BSND (optional), prefix sums for TND.
        actual_seq_lengths_key: int [B] per request for BSND (optional) and PA_BSND, prefix sums
            for TND.
        block_table: int32 [B, max_blocks], PA_BSND only.
        sparse_count: how many positions a row holds.
        sparse_mode: 3 = causal, right aligned: query i of n sees keys 0 .. k_len - n + i;
            0 = every key.
        pre_tokens, next_tokens: torch_npu's windows; only 2**63 - 1 (none) is accepted.
        return_value: also return the scores.
        sorted: order a row by descending score as torch_npu does, not by position.

    The last axis of every tensor must be dense. All are on one device, the lengths there or on
    the CPU.

    Returns:
        (indices, values): indices int32 [B, S1, 1, sparse_count] or [T, 1, sparse_count] are
        positions inside the request, ascending (by descending score if ``sorted``), padded with
        -1. Equal scores: the lower position wins and comes first. A NaN score counts as minus
        infinity. Rows of no request and rows without a visible key hold -1 only. values are the
        scores in query's dtype, -inf where the index is -1, or a tensor of shape [0].

    Raises:
        ArgumentError: arguments that contradict each other or the above; the message says what
            was expected.
        BackendUnavailable: the named backend cannot run here.

    Formula: DeepSeek-V3.2 report, section 2.1; call signature of torch_npu.npu_lightning_indexer.
    """
    indices, values = operator.FLOAT(
        query,
        key,
        weights,
        actual_seq_lengths_query=actual_seq_lengths_query,
        actual_seq_lengths_key=actual_seq_lengths_key,
        block_table=block_table,
        layout_query=layout_query,
        layout_key=layout_key,
        sparse_count=sparse_count,
        sparse_mode=sparse_mode,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        return_value=return_value,
        sorted=sorted,
        backend=backend,
    )
    return indices, values


def lightning_indexer_quant(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
    sorted: bool = False,
    backend: str = "auto",
) -> Tensor:
    """``lightning_indexer`` on int8 or e4m3 queries and keys with one scale per row.

    score(t, s) = key_scale[s] * sum_h weights[t, h] * query_scale[t, h] * max(0, q[t, h] . k[s]):
    exact int32 products (of e4m3 codes: exact products summed in F32), the rest in F32 (F64 if
    weights are F64). The NPU rounds the products of two factors and the scaled dots to F16 instead
    (README.md).

    Args:
        query: int8 or float8_e4m3fn (backends ``reference`` and ``triton`` only), [B, S1, H, D] or
            [T, H, D]; D up to 1023.
        key: query's dtype, layouts and strides as of ``lightning_indexer``.
        weights: [B, S1, H] or [T, H], any float dtype.
        query_dequant_scale: F16, F32 or F64, shape of weights.
        key_dequant_scale: F16, F32 or F64 [.., 1], shape of key without D; rows at one distance.
        query_quant_mode, key_quant_mode: 0 (per token and head) only.
        query_dtype, key_dtype: torch_npu's hints for types torch lacks; only None is accepted.
        others: as of ``lightning_indexer``.

    Returns:
        int32 indices as of ``lightning_indexer``.

    Raises:
        ArgumentError: arguments that contradict each other or the above.
        Declined: e4m3 codes with a backend that does not take them.
        BackendUnavailable: the named backend cannot run here.

    Call signature of torch_npu.npu_quant_lightning_indexer.
    """
    indices: Tensor = operator.QUANT(
        query,
        key,
        weights,
        query_dequant_scale,
        key_dequant_scale,
        query_quant_mode,
        key_quant_mode,
        actual_seq_lengths_query=actual_seq_lengths_query,
        actual_seq_lengths_key=actual_seq_lengths_key,
        block_table=block_table,
        layout_query=layout_query,
        layout_key=layout_key,
        sparse_count=sparse_count,
        sparse_mode=sparse_mode,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        query_dtype=query_dtype,
        key_dtype=key_dtype,
        sorted=sorted,
        backend=backend,
    )
    return indices
