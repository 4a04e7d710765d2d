"""Sparse flash attention in Triton: keys on the rows of each product, split over programs.

Not run on a GPU yet: Triton's interpreter runs the kernels, its compiler builds them for sm_90a.

S^T = K Q^T and O^T += V^T P^T put the keys where the tensor cores want 64 rows, so that 16 heads
suffice for them. A row of a request with few query tokens is split into parts of its positions; a
second kernel adds the parts. How often depends on the number of positions and of query tokens of
the row's own request, so a row's bits do not depend on its batch.

Arithmetic: products of the query's dtype summed in F32, softmax in F32 in base 2 over tiles of keys
with a running maximum, weights rounded to the query's dtype before they meet the values.

Packed rows are gathered and dequantised once for all heads, in F32 and rounded to BF16 as the
contract says. In one kernel with the products the codes' conversion spills registers (triton 3.6,
sm_90a; several arrangements were compiled).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.paged_cache.rows import LATENT, ROTATED, ROTATED_AT, SCALES_AT, TILE
from glm5_ascend.ops.sparse_flash_attention.triton_source import attend_rows, combine, unpack
from glm5_ascend.ops.triton.rows import Rows, describe
from glm5_ascend.ops.triton.runtime import INTERPRETED, check_device, padded

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Heads of one program; more of them spill registers.
HEADS = 32
# Requests with more query tokens fill the device without splitting.
_FEW = 4
PART = 128  # positions of a part, at least
PARTS = 16  # parts of a row, at most


class Tiles(NamedTuple):
    """Keys of a tile, warps of a program, stages of its pipeline."""

    keys: int
    warps: int
    stages: int


TILES = {2: Tiles(64, 8, 2), 4: Tiles(16, 8, 1)}  # by bytes of a query's number
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
) -> tuple[Tensor, Tensor, Tensor]:
    """(out [rows, H, Lv], max F32 [rows, H], sum F32 [rows, H]), arguments as in reference.py.

    Raises:
        Declined: F64.
        ArgumentError: tensors that are not on a CUDA device.
    """
    _check(query[0])
    indices, rows = _positions(indices, block), describe(requests, keys, causal=causal)
    out, peak, total = _results(query[0], value.shape[-1])
    for which, parts in _split(requests, indices.shape[1], query[0].device):
        _attend(query, key, value, indices, scale, rows, which, parts, (out, peak, total))
    return out, peak, total


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
    """out [rows, H, 512] over packed rows, arguments as in reference.py.

    Raises:
        Declined: F64.
        ArgumentError: tensors that are not on a CUDA device.
    """
    _check(query)
    indices, rows = _positions(indices, block), describe(requests, keys, causal=causal)
    results = _results(query, LATENT)
    count = indices.shape[1]
    # The rotated part and the scales of a row as numbers of their own width.
    words = packed[:, ROTATED_AT:SCALES_AT].view(torch.bfloat16)
    scales = packed[:, SCALES_AT:].view(torch.float32)
    step = max(1, _CHUNK_BYTES // (2 * (LATENT + ROTATED) * max(1, count)))
    for which, parts in _split(requests, count, query.device):
        for some in torch.split(which, step):
            n = len(some)
            cache = query.new_empty(n * count, LATENT + ROTATED)
            positions = torch.empty(n, count, dtype=torch.int32, device=query.device)
            own = indices[some]
            unpack[(n, triton.cdiv(count, UNPACKED))](
                packed, packed.stride(0), words, words.stride(0), scales, scales.stride(0),
                own, own.stride(0), count, rows.request[some], rows.visible[some], rows.start,
                rows.table, rows.table_stride, cache, positions,
                L=LATENT, R=ROTATED, TILE=TILE, BN=UNPACKED, PAGE=rows.page,
                INTERPRET=INTERPRETED, num_warps=4,
            )  # fmt: skip
            number = torch.arange(n, device=query.device)
            theirs = Rows(number, torch.full_like(number, count), number * count, number, 0, 0)
            piece = query[some]
            found = _results(piece, LATENT)
            _attend(
                [piece[..., :LATENT], piece[..., LATENT:]],
                [cache[:, :LATENT], cache[:, LATENT:]],
                cache[:, :LATENT], positions, scale, theirs, number, parts, found,
            )  # fmt: skip
            results[0][some] = found[0]
    return results[0]


def _check(query: Tensor) -> None:
    check_device(query)
    if query.dtype not in _DTYPES:
        raise Declined(
            "backend 'triton' computes attention in bfloat16, float16 or float32, not in "
            f"{str(query.dtype).removeprefix('torch.')}",
            "choose backend 'reference'",
        )


def _results(query: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Output [rows, H, width], maximum and sum F32 [rows, H], all to be filled."""
    rows, heads = query.shape[:2]
    peak = query.new_empty(rows, heads, dtype=torch.float32)
    return query.new_empty(rows, heads, width), peak, torch.empty_like(peak)


def _positions(indices: Tensor, block: int) -> Tensor:
    """int32 [rows, K * block]: the positions that entries naming blocks of them stand for."""
    if block == 1:
        return indices
    tokens = indices[..., None] * block + torch.arange(block, device=indices.device)
    return torch.where(indices[..., None] < 0, -1, tokens).flatten(1).int()


def _attend(
    query: list[Tensor],
    key: list[Tensor],
    value: Tensor,
    indices: Tensor,
    scale: float,
    rows: Rows,
    which: Tensor,
    parts: int,
    results: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Fill ``results`` of the rows ``which``, each split into ``parts``."""
    latent, rotated = query[0], query[-1]
    n, heads, count, width = len(which), latent.shape[1], indices.shape[1], value.shape[-1]
    rope = rotated.shape[2] if len(query) > 1 else 0
    tiles = TILES[latent.element_size()]
    shared = value.data_ptr() == key[0].data_ptr() and value.shape == key[0].shape
    in_head = min(HEADS, padded(heads))
    pieces = latent.new_empty(parts, n, heads, width, dtype=torch.float32)
    peaks = latent.new_empty(parts, n, heads, dtype=torch.float32)
    sums = torch.empty_like(peaks)
    length = triton.cdiv(triton.cdiv(max(count, 1), parts), tiles.keys) * tiles.keys
    attend_rows[(n, triton.cdiv(heads, in_head), parts)](
        latent, latent.stride(0), latent.stride(1), rotated, rotated.stride(0), rotated.stride(1),
        key[0], key[0].stride(0), key[-1], key[-1].stride(0), value, value.stride(0),
        indices, indices.stride(0), count, which, rows.request, rows.visible, rows.start,
        rows.table, rows.table_stride, pieces, peaks, sums, scale * math.log2(math.e), n, heads,
        length,
        L=latent.shape[2], LP=padded(latent.shape[2]), R=rope, RP=padded(max(1, rope)), V=width,
        VP=padded(width), SHARED=shared, BN=tiles.keys, HB=in_head, PAGE=rows.page,
        INTERPRET=INTERPRETED, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    combine[(n, heads)](
        pieces, peaks, sums, which, *results, n, heads,
        PARTS=parts, PP=padded(parts, 1), V=width, VP=padded(width), INTERPRET=INTERPRETED,
    )  # fmt: skip


def _split(requests: Queries, count: int, device: torch.device) -> list[tuple[Tensor, int]]:
    """(rows, parts of each) of short requests, of long ones and of rows that nobody owns."""
    parts = max(1, min(PARTS, count // PART))
    short = torch.zeros(requests.rows, dtype=torch.bool)
    for start, length in zip(requests.starts, requests.lengths, strict=True):
        short[start : start + length] = length <= _FEW
    found = []
    for rows, number in ((short.nonzero(), parts), ((~short).nonzero(), 1)):
        if len(rows):
            found.append((rows.flatten().to(device), number))
    return found
