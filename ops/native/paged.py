"""What ``struct Paged`` of csrc/g5_paged.h holds: lengths and block table, read by the kernels."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from glm5_ascend.ops.native.library import check

_REFUSED = 4  # an error beside those of g5.h: a value that the operator's contract refuses
_SIZES = struct.Struct("@8q")


def is_answered(code: int, operator: str) -> bool:
    """Whether a kernel computed; False where it refused a value.

    Raises:
        KernelError: from :func:`check`, for any other number that ``operator`` returned.
    """
    if code and code != _REFUSED:
        check(code, operator)
    return not code


def sizes(ends: Tensor, lengths: Tensor, table: Tensor, key: Tensor, rows: int) -> bytes:
    """The fields behind the three pointers.

    Args:
        ends, lengths: dense, int32 or int64 [B].
        table: int32 [B, max_blocks], last axis dense.
        key: [blocks, block_size, ..].
        rows: of the query.
    """
    wide = [x.dtype == torch.int64 for x in (ends, lengths)]
    return _SIZES.pack(
        *wide, len(ends), table.stride(0), table.shape[1], key.shape[1], key.shape[0], rows
    )
