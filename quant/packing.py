"""Byte layouts of int4 weights: vllm-ascend's, with its offset bias, and compressed-tensors'."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.quant.scheme import DOWN_BIAS_COLUMNS


def pack_rows(codes: Tensor) -> Tensor:
    """Pack int4 codes along the output axis.

    Args:
        codes: int8 [out, in] in [-8, 7], ``out`` even.

    Returns:
        int8 [out/2, in]: row ``2k`` in the low nibble and ``2k + 1`` in the high nibble of row
        ``k``, two's complement.
    """
    if codes.dtype != torch.int8 or codes.dim() != 2 or codes.shape[0] % 2:
        raise ValueError(f"int8 codes with an even number of rows, got {codes.shape}")
    if int(codes.min()) < -8 or int(codes.max()) > 7:
        raise ValueError("codes outside [-8, 7]")
    low, high = codes[0::2], codes[1::2]
    return (high << 4) | (low & 0xF)


def unpack_rows(packed: Tensor) -> Tensor:
    """Invert :func:`pack_rows`: int8 [out/2, in] to int8 codes [out, in]."""
    low = (packed << 4) >> 4
    high = packed >> 4
    return torch.stack([low, high], 1).reshape(2 * packed.shape[0], packed.shape[1])


def pack_words(codes: Tensor) -> Tensor:
    """Pack int4 codes along the input axis, as compressed-tensors' ``pack-quantized`` does.

    Args:
        codes: int8 [out, in] in [-8, 7], ``in`` a multiple of 8.

    Returns:
        int32 [out, in/8]: code ``8 k + i`` plus 8 in bits ``4 i`` of word ``k`` of its row.
    """
    nibbles = (codes + 8).to(torch.uint8).reshape(codes.shape[0], -1, 2)
    pairs = nibbles[..., 0] | (nibbles[..., 1] << 4)
    # The first byte of a word is its lowest: every machine that this runs on is little-endian.
    return pairs.contiguous().view(torch.int32)


def offset_bias(codes: Tensor, scale: Tensor, *, is_down: bool) -> Tensor:
    """``scale_bias`` = 8 · Σ codes · scale, the constant that undoes the kernel's offset of 8.

    The kernel multiplies int4 weights with ``x_q - 8`` halves of the activation, so each output
    channel lacks eight times the sum of its dequantised weights.

    Args:
        codes: int8 [out, in].
        scale: float32 [out, 1].
        is_down: split the sum into 16 partial sums over equal slices of ``in`` (for tensor
            parallelism over the input of a down projection).

    Returns:
        float32 [out, 1] or [out, 16]. Integer sums are exact; one float32 rounding at the end.
    """
    columns = DOWN_BIAS_COLUMNS if is_down else 1
    sums = codes.reshape(codes.shape[0], columns, -1).sum(-1, dtype=torch.int64)
    return (8.0 * sums.double() * scale.double()).float()
