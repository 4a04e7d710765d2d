"""Online softmax over key tiles, as kernels do it, with one planted fault."""

from __future__ import annotations

import math

import torch

WIDTH, VALUE, TILE = 576, 512, 64
Arrays = tuple[torch.Tensor, torch.Tensor]
FAULTS = (
    "scale",
    "last-tile-dropped",
    "invalid-index-used",
    "rescale-omitted",
    "bf16-accumulator",
    "one-row",
    "one-element",
    "nan",
    "inf",
    "zero",
)


def tiled(data: Arrays, fault: str = "") -> torch.Tensor:
    """BF16 [n, 512] of queries [n, 576] over rows [keys, 576], F32 accumulators, scale 1/16."""
    q, rows = (x.float() for x in data)
    scale = 1.02 / 16 if fault == "scale" else 1 / 16
    peak = torch.full((len(q), 1), -math.inf)
    total, out = torch.zeros(len(q), 1), torch.zeros(len(q), VALUE)
    tiles = [rows[i : i + TILE] for i in range(0, len(rows), TILE)]
    if fault == "last-tile-dropped":
        tiles.pop()
    if fault == "invalid-index-used":
        tiles[-1] = torch.cat([tiles[-1], rows[:1]])
    for number, tile in enumerate(tiles):
        scores = q @ tile.T * scale
        higher = torch.maximum(peak, scores.amax(dim=1, keepdim=True))
        weights = torch.exp(scores - higher)
        rescale = torch.exp(peak - higher)
        total = total * rescale + weights.sum(dim=1, keepdim=True)
        if fault == "rescale-omitted":
            rescale = torch.ones_like(rescale) if number else rescale
        out = out * rescale + weights @ tile[:, :VALUE]
        if fault == "bf16-accumulator":
            out = out.bfloat16().float()
        peak = higher
    result = (out / total).bfloat16()
    return spoiled(result, fault)


def spoiled(result: torch.Tensor, fault: str) -> torch.Tensor:
    """Faults of the finished array."""
    if fault == "one-row":
        result[3] = result[4]
    if fault == "one-element":
        worst = result.abs().argmax()
        result.view(-1)[worst] *= 1.1
    if fault == "nan":
        result[2, 7] = math.nan
    if fault == "inf":
        result[2, 7] = math.inf
    if fault == "zero":
        result.zero_()
    return result
