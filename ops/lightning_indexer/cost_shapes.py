"""Shapes of the cost model: ``b`` requests of ``q`` query tokens over ``s`` cached keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glm5_ascend.ops.emulator.cost_case import Case, Shape, halved, refuse
from glm5_ascend.ops.lightning_indexer.api import lightning_indexer, lightning_indexer_quant

# h heads of 128; k positions are kept; int8=1: int8 queries and keys with F16 scales.
KEYS = {"b": 1, "q": 1, "s": 65536, "h": 32, "k": 2048, "int8": 0}
_DIM, _PAGE, _HEADS = 128, 128, (16, 32, 48, 64)
# Multiply-adds per second, and key-row pairs per second, of the emulator on one core.
_HOST_PRODUCTS, _HOST_PAIRS = 3e9, 1.5e6


def case(shape: Shape) -> Case:
    """The case of a shape; queries are the last ``q`` tokens of their request."""
    b, q, s, h, k, int8 = (shape[key] for key in KEYS)
    refuse(q > s, f"q={q} query tokens need as many keys, not s={s}", "raise s")
    refuse(int8 > 1, f"int8 is {int8}", "write int8=0 or int8=1")
    refuse(h not in _HEADS, f"h={h} heads", f"the kernel takes h={', '.join(map(str, _HEADS))}")
    refuse(k > 2048, f"k={k} positions", "the kernel keeps at most 2048")
    # Rows that see k keys or fewer need no scores.
    trivial = min(q, max(0, k - (s - q)))
    scored = q - trivial
    pairs = b * (scored * s - scored * (scored - 1) // 2)
    products = pairs * h * _DIM
    floor, floor_bytes = "keys, once", 2 * _DIM * b * s
    if int8:
        floor, floor_bytes = "keys and their scales, once", (_DIM + 2) * b * s
    if not scored:
        floor, floor_bytes = "positions, once", 4 * b * q * k
    return Case(
        run=lambda: _call(shape),
        floor=floor,
        floor_bytes=floor_bytes,
        products={"int8" if int8 else "b16": products},
        memory=_DIM * (6 * s + 12 * b * s) + 8 * _DIM * b * q * h,
        seconds=4 + products / _HOST_PRODUCTS + pairs / _HOST_PAIRS,
        smaller=lambda: halved(shape, ("q", "b", "s"), {"q": 96, "b": 16, "s": 8192}),
    )


@dataclass(frozen=True)
class _Data:
    """Queries of all requests, one cache that no two requests share, and lengths."""

    query: Tensor
    keys: Tensor
    weights: Tensor
    table: Tensor
    query_lengths: Tensor
    key_lengths: Tensor


def _draw(shape: Shape) -> _Data:
    b, q, s, h = (shape[key] for key in ("b", "q", "s", "h"))
    generator = torch.Generator().manual_seed(0)
    pages = -(-s // _PAGE)
    one = torch.randn(pages, _PAGE, 1, _DIM, generator=generator).bfloat16()
    return _Data(
        torch.randn(b * q, h, _DIM, generator=generator).bfloat16(),
        one.repeat(b, 1, 1, 1),
        torch.rand(b * q, h, generator=generator),
        torch.arange(b * pages, dtype=torch.int32).view(b, pages),
        torch.arange(1, b + 1, dtype=torch.int32) * q,
        torch.full((b,), s, dtype=torch.int32),
    )


def _call(shape: Shape) -> None:
    data = _draw(shape)
    where: dict[str, Any] = {
        "actual_seq_lengths_query": data.query_lengths,
        "actual_seq_lengths_key": data.key_lengths,
        "block_table": data.table,
        "layout_query": "TND",
        "layout_key": "PA_BSND",
    }
    if not shape["int8"]:
        lightning_indexer(
            data.query,
            data.keys,
            data.weights.bfloat16(),
            sparse_count=shape["k"],
            backend="emulated",
            **where,
        )
        return
    codes = [
        (each * 40).round().clamp(-127, 127).to(torch.int8) for each in (data.query, data.keys)
    ]
    lightning_indexer_quant(
        codes[0],
        codes[1],
        data.weights.half(),
        torch.full(data.weights.shape, 0.025).half(),
        torch.full(data.keys.shape[:-1], 0.025).half(),
        sparse_count=shape["k"],
        backend="emulated",
        **where,
    )
