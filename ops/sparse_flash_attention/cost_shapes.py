"""Shapes of the cost model: ``b`` requests of ``q`` query tokens over ``s`` cached rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.emulator.cost_case import Case, Shape, halved, refuse
from glm5_ascend.ops.paged_cache.rows import LATENT, PACKED, ROTATED, ROTATED_AT, SCALES_AT
from glm5_ascend.ops.sparse_flash_attention.api import (
    kv_quant_sparse_flash_attention,
    sparse_flash_attention,
)

# h heads of 512 + 64; every token has k rows of its own; int8=1: packed rows of 656 bytes.
KEYS = {"b": 1, "q": 1, "s": 65536, "h": 64, "k": 2048, "int8": 0}
_PAGE, _SCALE = 128, 256**-0.5
# Multiply-adds per second, and rows per second, of the emulator on one core.
_HOST_PRODUCTS, _HOST_ROWS = 2e9, 4e4


def case(shape: Shape) -> Case:
    """The case of a shape; queries are the last ``q`` tokens of their request."""
    b, q, s, h, k, int8 = (shape[key] for key in KEYS)
    refuse(q > s, f"q={q} query tokens need as many rows, not s={s}", "raise s")
    refuse(h > 128, f"h={h} heads", "the kernel takes h=1 to h=128")
    refuse(int8 > 1, f"int8 is {int8}", "write int8=0 or int8=1")
    short = min(q, max(0, k - (s - q)))  # queries that see at most k rows
    rows = b * (short * (s - q) + short * (short + 1) // 2 + (q - short) * k)
    products = rows * h * (2 * LATENT + ROTATED)
    return Case(
        run=lambda: _call(shape),
        floor="chosen rows, once per query token",
        floor_bytes=rows * (PACKED if int8 else 2 * (LATENT + ROTATED)),
        products={"b16": products},
        memory=(LATENT + ROTATED) * (6 * s + 8 * b * s + 16 * b * q * h) + 8 * b * q * k,
        seconds=4 + products / _HOST_PRODUCTS + rows / _HOST_ROWS,
        smaller=lambda: halved(shape, ("q", "b"), {"q": 48, "b": 24}),
    )


def _choices(shape: Shape) -> Tensor:
    """int32 [b * q, 1, k]: ascending positions that each token sees, then -1."""
    b, q, s, k = (shape[key] for key in ("b", "q", "s", "k"))
    generator = torch.Generator().manual_seed(1)
    chosen = torch.full((b, q, k), -1, dtype=torch.int32)
    for request in range(b):
        for i in range(q):
            seen = s - q + i + 1
            part = torch.randperm(seen, generator=generator)[:k].sort().values
            chosen[request, i, : len(part)] = part.int()
    return chosen.view(b * q, 1, k)


def _packed(rows: int, generator: torch.Generator) -> Tensor:
    """uint8 [rows, 656] with random codes, rotated parts and equal scales."""
    packed = torch.randint(0, 256, (rows, PACKED), generator=generator).to(torch.uint8)
    rotated = torch.randn(rows, ROTATED, generator=generator).bfloat16()
    packed[:, ROTATED_AT:SCALES_AT] = rotated.view(torch.uint8)
    packed[:, SCALES_AT:] = torch.full((rows, LATENT // 128), 0.01).view(torch.uint8)
    return packed


def _call(shape: Shape) -> None:
    b, q, s, h = (shape[key] for key in ("b", "q", "s", "h"))
    generator = torch.Generator().manual_seed(0)
    pages = -(-s // _PAGE)
    where: dict[str, Any] = {
        "block_table": torch.arange(b * pages, dtype=torch.int32).view(b, pages),
        "actual_seq_lengths_query": torch.arange(1, b + 1, dtype=torch.int32) * q,
        "actual_seq_lengths_kv": torch.full((b,), s, dtype=torch.int32),
        "layout_query": "TND",
        "layout_kv": "PA_BSND",
    }
    query = torch.randn(b * q, h, LATENT + ROTATED, generator=generator).bfloat16()
    if shape["int8"]:
        cache = _packed(pages * _PAGE, generator).view(pages, _PAGE, 1, PACKED)
        cache = cache.repeat(b, 1, 1, 1).view(torch.int8)
        kv_quant_sparse_flash_attention(
            query, cache, cache, _choices(shape), _SCALE, backend="emulated", **where
        )
        return
    latent = torch.randn(pages, _PAGE, 1, LATENT, generator=generator).bfloat16()
    rotated = torch.randn(pages, _PAGE, 1, ROTATED, generator=generator).bfloat16()
    latent, rotated = latent.repeat(b, 1, 1, 1), rotated.repeat(b, 1, 1, 1)
    sparse_flash_attention(
        query[..., :LATENT].contiguous(),
        latent,
        latent,
        _choices(shape),
        _SCALE,
        query_rope=query[..., LATENT:].contiguous(),
        key_rope=rotated,
        backend="emulated",
        **where,
    )
