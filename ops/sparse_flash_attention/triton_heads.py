"""Launches of ``attend_heads``: rows one by one, split or not, and neighbours united."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from glm5_ascend.ops.sparse_flash_attention import triton_parts
from glm5_ascend.ops.sparse_flash_attention.triton_parts import Results
from glm5_ascend.ops.sparse_flash_attention.triton_plan import Groups, Share
from glm5_ascend.ops.sparse_flash_attention.triton_source import attend_heads, unite
from glm5_ascend.ops.triton.rows import Rows
from glm5_ascend.ops.triton.runtime import INTERPRETED, LEAST, padded

MEMBERS = 64  # rows of the products: heads of one token, or of some
UNITED = 256  # positions of a step of uniting
# Positions that exist united at once.
_CHUNK_BYTES = 1 << 28


class Cache(NamedTuple):
    """Columns of the cache: numbers or codes, scales of codes (or anything), rotated keys."""

    codes: Tensor
    scales: Tensor
    words: Tensor
    packed: bool


class Call(NamedTuple):
    """One call; latent and rotated query, positions int32 [rows, count], what to fill."""

    latent: Tensor
    rotated: Tensor
    cache: Cache
    indices: Tensor
    scale: float
    rows: Rows
    results: Results


class _Lines(NamedTuple):
    """Positions to read, and for groups whose they are and how many; which rows, what to fill."""

    which: Tensor
    entries: Tensor
    members: Tensor
    sizes: Tensor
    group: Tensor
    many: Tensor
    tokens: int
    united: bool
    found: Results


def fits(query: list[Tensor], key: list[Tensor], value: Tensor) -> bool:
    """Whether the kernel takes these shapes."""
    same = value.data_ptr() == key[0].data_ptr() and value.shape == key[0].shape
    if len(query) == 1 or query[0].element_size() != 2 or not same:
        return False
    latent, rotated = query[0].shape[2], query[1].shape[2]
    return latent == 4 * padded(latent // 4, LEAST) and rotated == padded(rotated)


def attend(call: Call, share: Share) -> None:
    """Fill the results of the rows of ``share``: united ones first, the others one by one."""
    count, groups = call.indices.shape[1], share.groups
    sizes = group = share.rows
    if groups is not None:
        sizes, group = _united(call, share, groups), groups.of_row
    found = call.results
    if share.parts > 1:
        width = call.latent.shape[2]
        found = triton_parts.pieces(call.latent, len(share.rows), width, share.parts)
    length = triton_parts.length(count, share.parts, share.how.tile)
    united = groups is not None
    alone = _Lines(
        share.rows, call.indices, call.indices, sizes, group, group, 1, united, found
    )  # fmt: skip
    _launch(call, share, alone, length)
    if share.parts > 1:
        triton_parts.add(found, share.rows, call.results)


def _united(call: Call, share: Share, groups: Groups) -> Tensor:
    """Attend to what neighbours have in common; int32 sizes of the groups, -1 of those left."""
    tokens, count = share.how.unite, call.indices.shape[1]
    sizes = torch.full_like(groups.first, -1, dtype=torch.int32)
    width = tokens * count
    step = max(1, _CHUNK_BYTES // (5 * max(1, width)))
    for begin in range(0, len(sizes) if count else 0, step):
        some = slice(begin, begin + step)
        first, many, size = groups.first[some], groups.many[some], sizes[some]
        entries = torch.empty(len(first), width, dtype=torch.int32, device=first.device)
        members = torch.empty(len(first), width, dtype=torch.int8, device=first.device)
        unite[(len(first),)](
            call.indices, call.indices.stride(0), count, first, many, call.rows.visible,
            entries, members, width, size, share.how.share,
            G=tokens, BN=UNITED, STEPS=count.bit_length(), num_warps=4,
        )  # fmt: skip
        lines = _Lines(first, entries, members, size, first, many, tokens, True, call.results)
        _launch(call, share, lines, triton_parts.length(width, 1, share.how.tile))
    return sizes


def _launch(call: Call, share: Share, lines: _Lines, length: int) -> None:
    latent, rotated, cache, rows, how = call.latent, call.rotated, call.cache, call.rows, share.how
    n, heads, split = len(lines.which), latent.shape[1], lines.found is not call.results
    attend_heads[(n, -(-heads // (MEMBERS // lines.tokens)), share.parts)](
        latent, latent.stride(0), latent.stride(1), rotated, rotated.stride(0), rotated.stride(1),
        cache.codes, cache.codes.stride(0), cache.scales, cache.scales.stride(0), cache.words,
        cache.words.stride(0), lines.entries, lines.entries.stride(0), call.indices.shape[1],
        lines.members, lines.sizes, lines.group, lines.which, lines.many, rows.request,
        rows.visible, rows.start, rows.table, rows.table_stride, *lines.found,
        call.scale * 1.4426950408889634, n, heads, length,
        T=latent.shape[2] // 4, R=rotated.shape[2], M=MEMBERS, G=lines.tokens, BN=how.tile,
        PAGE=rows.page, PACKED=cache.packed, UNITED=lines.united, SPLIT=split,
        INTERPRET=INTERPRETED, num_warps=how.warps, num_stages=how.stages,
    )  # fmt: skip
