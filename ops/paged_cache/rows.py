"""The packed 656-byte cache row: 512 int8 codes | 64 BF16 rotated dims | 4 F32 scales."""

from __future__ import annotations

LATENT = 512  # dims of the latent, one int8 code each
TILE = 128  # codes that share a scale
ROTATED = 64  # dims of the rotated key, BF16
ROTATED_AT = LATENT  # byte where the rotated key starts
SCALES_AT = ROTATED_AT + 2 * ROTATED  # byte where the scales start
PACKED = SCALES_AT + 4 * LATENT // TILE  # bytes of a row
# The e4m3 row of FlashMLA and vLLM: 512 codes | 4 F32 scales | 64 BF16 rotated dims.
FP8_SCALES_AT = LATENT
FP8_ROTATED_AT = FP8_SCALES_AT + 4 * LATENT // TILE
