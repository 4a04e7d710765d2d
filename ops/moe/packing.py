"""int4 pairs in bytes, as the Ascend grouped matmul wants them: along the output axis."""

from __future__ import annotations

import torch
from torch import Tensor


def pack_int4(codes: Tensor) -> Tensor:
    """int8 [.., N / 2, K] of codes [.., N, K] in -8..7.

    Rows 2i and 2i + 1 share a byte: the even row is the low nibble, two's complement.

    Raises:
        ValueError: an odd number of rows, another dtype, or a code outside -8..7.
    """
    if codes.dtype != torch.int8 or codes.ndim < 2 or codes.shape[-2] % 2:
        raise ValueError(f"{codes.dtype} {tuple(codes.shape)} must be int8 with an even N")
    if codes.numel() and (int(codes.min()) < -8 or int(codes.max()) > 7):
        raise ValueError("int4 codes must lie in -8..7")
    even, odd = codes[..., 0::2, :], codes[..., 1::2, :]
    return (odd << 4) | (even & 0xF)


def unpack_int4(packed: Tensor) -> Tensor:
    """int8 codes [.., N, K] in -8..7 of packed [.., N / 2, K]."""
    if packed.dtype != torch.int8 or packed.ndim < 2:
        raise ValueError(f"{packed.dtype} {tuple(packed.shape)} must be int8 [.., N / 2, K]")
    even, odd = (packed << 4) >> 4, packed >> 4
    return torch.stack((even, odd), -2).flatten(-3, -2)
