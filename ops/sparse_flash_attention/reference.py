"""Sparse flash attention in plain torch: gather the chosen rows, then one softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.layout import Keys, Queries, visible_keys
from glm5_ascend.ops.paged_cache.reference import unpack
from glm5_ascend.ops.paged_cache.rows import FP8_ROTATED_AT, LATENT, TILE

# Gathered rows of one chunk of queries; small enough to stay in the cache of a core.
_CHUNK_BYTES = 2 << 20


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
    """(out [rows, H, Lv], max [rows, H], sum [rows, H]).

    ``query`` and ``key`` hold the latent and, if there is one, the rotated part: [rows, H, d] and
    [flat rows, d]. The scores of the parts are added.
    """
    flat, valid = _rows(indices, block, requests, keys, causal=causal)
    return _in_chunks(query, key, value, flat, valid, scale)


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
    """out [rows, H, 512] of query [rows, H, 576] over int8 or e4m3 rows [flat rows, 656].

    The rows in use become BF16; everything else is as in ``forward``.
    """
    flat, valid = _rows(indices, block, requests, keys, causal=causal)
    used, place = torch.unique(flat, return_inverse=True)
    rows = packed[used] if len(packed) else packed.new_zeros(len(used), packed.shape[1])
    fp8 = rows.dtype == torch.float8_e4m3fn
    latent, rotated = (part.to(query.dtype) for part in (unpack_fp8 if fp8 else unpack)(rows))
    parts = [query[..., : latent.shape[1]], query[..., latent.shape[1] :]]
    return _in_chunks(parts, [latent, rotated], latent, place, valid, scale)[0]


def unpack_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(latent BF16 [T, 512], rotated key BF16 [T, 64]) of rows [T, 656] of e4m3 latents.

    512 e4m3 codes | 4 F32 scales | 64 BF16 rotated dims; latent = code * scale in F32, rounded.
    """
    scale = rows[:, LATENT:FP8_ROTATED_AT].contiguous().view(torch.float32)[..., None]
    tiles = rows[:, :LATENT].float().view(len(rows), LATENT // TILE, TILE)
    rotated = rows[:, FP8_ROTATED_AT:].contiguous().view(torch.bfloat16)
    return (tiles * scale).flatten(-2).to(torch.bfloat16), rotated


def _rows(
    indices: Tensor, block: int, requests: Queries, keys: Keys, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """(flat key row, whether it counts) [rows, K * block] of indices [rows, K].

    Entries that do not count name row 0, whose content is then cleared.
    """
    position = indices.long()
    if block > 1:
        tokens = position[..., None] * block + torch.arange(block, device=indices.device)
        position = torch.where(position[..., None] < 0, -1, tokens).flatten(1)
    request, visible = visible_keys(requests, keys, causal=causal)
    valid = (position >= 0) & (position < visible[:, None])
    if not keys.lengths:
        return torch.zeros_like(position), valid
    flat = keys.flat_rows(request[:, None], position.masked_fill(~valid, 0))
    return flat.masked_fill_(~valid, 0), valid


def _in_chunks(
    query: list[Tensor], key: list[Tensor], value: Tensor, flat: Tensor, valid: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``_attend`` on some queries at a time."""
    dtype = torch.float64 if query[0].dtype == torch.float64 else torch.float32
    rows, heads = query[0].shape[:2]
    out = query[0].new_empty(rows, heads, value.shape[-1])
    peak = query[0].new_empty(rows, heads, dtype=dtype)
    total = query[0].new_empty(rows, heads, dtype=dtype)
    width = sum(k.shape[-1] for k in key)
    step = max(1, _CHUNK_BYTES // (4 * max(1, flat.shape[1]) * width))
    for i in range(0, rows, step):
        part = slice(i, i + step)
        out[part], peak[part], total[part] = _attend(
            [q[part].to(dtype) for q in query], key, value, flat[part], valid[part], scale
        )
    return out, peak, total


def _attend(
    query: list[Tensor], key: list[Tensor], value: Tensor, flat: Tensor, valid: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One chunk: query [n, H, d] each, flat and valid [n, K]."""
    unused = None if bool(valid.all()) else ~valid
    dtype = query[0].dtype
    picked = [_gather(k, flat, unused, dtype) for k in key]
    score = torch.bmm(query[0], picked[0].mT)
    for q, k in zip(query[1:], picked[1:], strict=True):
        score.baddbmm_(q, k.mT)
    score *= scale
    if unused is not None:
        score.masked_fill_(unused[:, None], -torch.inf)
    peak = score.amax(-1) if flat.shape[1] else score.new_full(score.shape[:-1], -torch.inf)
    weight = score.sub_(peak.masked_fill(peak == -torch.inf, 0)[..., None]).exp_()
    total = weight.sum(-1)
    v = picked[0] if value is key[0] else _gather(value, flat, unused, dtype)
    out = torch.bmm(weight, v).div_(total.masked_fill(total == 0, 1)[..., None])
    return out, peak, total


def _gather(rows: Tensor, flat: Tensor, unused: Tensor | None, dtype: torch.dtype) -> Tensor:
    """[n, K, d] in ``dtype``; zero where unused, since unwritten cache rows may hold NaN."""
    if not len(rows):
        return torch.zeros(*flat.shape, rows.shape[1], dtype=dtype, device=flat.device)
    picked = rows.index_select(0, flat.flatten()).to(dtype).view(*flat.shape, -1)
    return picked if unused is None else picked.masked_fill_(unused[..., None], 0)
