"""FP8 (e4m3) weights in 128 x 128 blocks with a ceil grid, as the published FP8 checkpoints."""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 128
FP8_MAX = 448.0

# Names that the FP8 releases keep in BF16 or F32 (model.md 1.6).
FP8_KEPT = (
    "norm.weight",
    "norm.bias",
    "embed_tokens.weight",
    "lm_head.weight",
    "mlp.gate.weight",
    "e_score_correction_bias",
    "eh_proj.weight",
    "weights_proj.weight",
)


def _expand(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    by_row = scales.repeat_interleave(BLOCK, dim=0)[:rows]
    return by_row.repeat_interleave(BLOCK, dim=1)[:, :columns]


def quantise_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (codes float8_e4m3fn [N, K], scales F32 [ceil(N/128), ceil(K/128)])."""
    rows, columns = weight.shape
    grid = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = torch.zeros(grid[0] * BLOCK, grid[1] * BLOCK)
    padded[:rows, :columns] = weight.float()
    peak = padded.view(grid[0], BLOCK, grid[1], BLOCK).abs().amax(dim=(1, 3))
    scales = peak.clamp_min(1e-12) / FP8_MAX
    codes = (weight.float() / _expand(scales, rows, columns)).to(torch.float8_e4m3fn)
    return codes, scales


def dequantise_blocks(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the F32 weight of FP8 ``codes`` [N, K] with one scale per 128 x 128 block."""
    return codes.float() * _expand(scales, *codes.shape)


def fp8_config(kept_names: list[str]) -> dict[str, Any]:
    """Return ``quantization_config``; the published alias ``indexers_proj`` is reproduced."""
    modules = {name.removesuffix(".weight").removesuffix(".bias") for name in kept_names}
    published = [m.replace("indexer.weights_proj", "indexers_proj") for m in modules]
    return {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "modules_to_not_convert": sorted(published),
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
    }
