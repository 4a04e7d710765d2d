"""Sparse flash attention in Triton: few query tokens split over programs, many of them united.

Not run on a GPU yet: Triton's interpreter runs the kernels, its compiler builds them for sm_90a.

Two forms, chosen by the table ops/triton/tuning.toml. With the keys on the rows of the products,
S^T = K Q^T and O^T += V^T P^T, 16 heads suffice for the tensor cores. With 64 rows of heads,
S = Q K^T and O += P V, packed rows become BF16 on their way to shared memory, once for all heads,
and four tokens of 16 heads share the rows that they have in common. (Packed rows on the rows of a
product spill registers: Triton then keeps both their orientations in registers.)

A row of a request with few query tokens is split into parts of its positions; a second kernel adds
the parts. Tokens are united where they are orderly and have enough in common, which a kernel finds
out on the device; the others are computed alone. All of it depends on the row's own request only,
and so do its bits.

Arithmetic: products of the query's dtype summed in F32, softmax in F32 in base 2 over tiles of keys
with a running maximum, weights rounded to the query's dtype before they meet the values. Packed
rows are dequantised in F32 and rounded to BF16 as the contract says; for another query than BF16 by
a kernel of its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.paged_cache import rows as packed_row
from glm5_ascend.ops.paged_cache.rows import LATENT, ROTATED, TILE
from glm5_ascend.ops.sparse_flash_attention import triton_heads, triton_parts
from glm5_ascend.ops.sparse_flash_attention.triton_heads import Cache, Call
from glm5_ascend.ops.sparse_flash_attention.triton_parts import Results
from glm5_ascend.ops.sparse_flash_attention.triton_plan import Share, shares
from glm5_ascend.ops.sparse_flash_attention.triton_source import attend_rows, unpack
from glm5_ascend.ops.triton.rows import Rows, describe
from glm5_ascend.ops.triton.runtime import INTERPRETED, check_device, padded

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Heads of one program with the keys on the rows of its products; more of them spill registers.
HEADS = 32
UNPACKED = 32  # packed rows of a program
# Rows of the cache that exist unpacked at once.
_CHUNK_BYTES = 1 << 28


def forward(
    query: list[Tensor],
    key: list[Tensor],
    value: Tensor,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    *,
    causal: bool,
) -> Results:
    """(out [rows, H, Lv], max F32 [rows, H], sum F32 [rows, H]), arguments as in reference.py.

    Raises:
        Declined: F64.
        ArgumentError: tensors that are not on a CUDA device.
    """
    first = query[0]
    _check(first)
    indices, rows = _positions(indices, block), describe(requests, keys, causal=causal)
    results = triton_parts.results(first, value.shape[-1])
    fits = triton_heads.fits(query, key, value)
    for share in shares(first.dtype, first.shape[1], requests, indices.shape[1], first.device):
        if fits and share.how.form == "heads":
            cache = Cache(key[0], key[0], key[1], packed=False)
            call = Call(first, query[1], cache, indices, scale, rows, results)
            triton_heads.attend(call, share)
        else:
            _by_keys(query, key, value, indices, scale, rows, share, results)
    return results


def forward_kv_quant(
    query: Tensor,
    packed: Tensor,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    *,
    causal: bool,
) -> Tensor:
    """out [rows, H, 512] over packed rows of int8 or e4m3, arguments as in reference.py.

    Raises:
        Declined: F64.
        ArgumentError: tensors that are not on a CUDA device.
    """
    _check(query)
    indices, rows = _positions(indices, block), describe(requests, keys, causal=causal)
    results = triton_parts.results(query, LATENT)
    cache = _columns(packed)
    parts = query[..., :LATENT], query[..., LATENT:]
    call = Call(*parts, cache, indices, scale, rows, results)
    for share in shares(packed.dtype, query.shape[1], requests, indices.shape[1], query.device):
        if query.dtype == torch.bfloat16:
            triton_heads.attend(call, share)
        else:
            _unpacked(call, share)
    return results[0]


def _columns(packed: Tensor) -> Cache:
    """The parts of packed rows as numbers of their own width."""
    fp8 = packed.dtype == torch.float8_e4m3fn
    rotated_at = packed_row.FP8_ROTATED_AT if fp8 else packed_row.ROTATED_AT
    scales_at = packed_row.FP8_SCALES_AT if fp8 else packed_row.SCALES_AT
    words = packed[:, rotated_at : rotated_at + 2 * ROTATED].view(torch.bfloat16)
    scales = packed[:, scales_at : scales_at + 4 * LATENT // TILE].view(torch.float32)
    return Cache(packed, scales, words, packed=True)


def _check(query: Tensor) -> None:
    check_device(query)
    if query.dtype not in _DTYPES:
        raise Declined(
            "backend 'triton' computes attention in bfloat16, float16 or float32, not in "
            f"{str(query.dtype).removeprefix('torch.')}",
            "choose backend 'reference'",
        )


def _positions(indices: Tensor, block: int) -> Tensor:
    """int32 [rows, K * block]: the positions that entries naming blocks of them stand for."""
    if block == 1:
        return indices
    tokens = indices[..., None] * block + torch.arange(block, device=indices.device)
    return torch.where(indices[..., None] < 0, -1, tokens).flatten(1).int()


def _unpacked(call: Call, share: Share) -> None:
    """Fill the results of the rows of ``share`` through BF16 rows that are gathered first."""
    rows, indices, cache = call.rows, call.indices, call.cache
    count, dtype = indices.shape[1], call.latent.dtype
    step = max(1, _CHUNK_BYTES // (2 * (LATENT + ROTATED) * max(1, count)))
    for some in torch.split(share.rows, step):
        n = len(some)
        plain = torch.empty(n * count, LATENT + ROTATED, dtype=dtype, device=indices.device)
        positions = torch.empty(n, count, dtype=torch.int32, device=indices.device)
        own = indices[some]
        unpack[(n, -(-count // UNPACKED))](
            cache.codes, cache.codes.stride(0), cache.words, cache.words.stride(0), cache.scales,
            cache.scales.stride(0), own, own.stride(0), count, rows.request[some],
            rows.visible[some], rows.start, rows.table, rows.table_stride, plain, positions,
            L=LATENT, R=ROTATED, TILE=TILE, BN=UNPACKED, PAGE=rows.page,
            INTERPRET=INTERPRETED, num_warps=4,
        )  # fmt: skip
        number = torch.arange(n, device=indices.device)
        theirs = Rows(number, torch.full_like(number, count), number * count, number, 0, 0)
        query = [call.latent[some], call.rotated[some]]
        key = [plain[:, :LATENT], plain[:, LATENT:]]
        found = triton_parts.results(query[0], LATENT)
        alone = Share(share.how, number, share.parts, None)
        _by_keys(query, key, key[0], positions, call.scale, theirs, alone, found)
        call.results[0][some] = found[0]


def _by_keys(
    query: list[Tensor],
    key: list[Tensor],
    value: Tensor,
    indices: Tensor,
    scale: float,
    rows: Rows,
    share: Share,
    results: Results,
) -> None:
    """Fill ``results`` of the rows of ``share`` by ``attend_rows``."""
    latent, rotated, which, how = query[0], query[-1], share.rows, share.how
    n, heads, count, width = len(which), latent.shape[1], indices.shape[1], value.shape[-1]
    rope = rotated.shape[2] if len(query) > 1 else 0
    shared = value.data_ptr() == key[0].data_ptr() and value.shape == key[0].shape
    in_head = min(HEADS, padded(heads))
    # F32 tiles are four times as large as the table's, whose rows are narrower.
    tile, stages = (16, 1) if latent.element_size() == 4 else (how.tile, how.stages)
    found = triton_parts.pieces(latent, n, width, share.parts)
    attend_rows[(n, -(-heads // in_head), share.parts)](
        latent, latent.stride(0), latent.stride(1), rotated, rotated.stride(0), rotated.stride(1),
        key[0], key[0].stride(0), key[-1], key[-1].stride(0), value, value.stride(0),
        indices, indices.stride(0), count, which, rows.request, rows.visible, rows.start,
        rows.table, rows.table_stride, *found, scale * math.log2(math.e), n, heads,
        triton_parts.length(count, share.parts, tile),
        L=latent.shape[2], LP=padded(latent.shape[2]), R=rope, RP=padded(max(1, rope)), V=width,
        VP=padded(width), SHARED=shared, BN=tile, HB=in_head, PAGE=rows.page,
        INTERPRET=INTERPRETED, num_warps=how.warps, num_stages=stages,
    )  # fmt: skip
    triton_parts.add(found, which, results)
