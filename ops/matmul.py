"""Matrix products with a promise: exact integers, and floats whose rows ignore the batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# |int8 * int8| <= 2^14, so sums of up to 1023 products stay below 2^24 and are exact in F32
# whatever the order of the additions.
_EXACT_TERMS = 1023
# Below this many rows BLAS takes other kernels, which add in another order.
_MIN_ROWS = 16


def int_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Exact int32 [.., N] of int8 x [.., K] and int8 weight [N, K]."""
    total: Tensor | None = None
    for start in range(0, x.shape[-1], _EXACT_TERMS):
        part = slice(start, start + _EXACT_TERMS)
        term = functional.linear(x[..., part].float(), weight[..., part].float()).to(torch.int32)
        total = term if total is None else total + term
    if total is None:
        return torch.zeros(*x.shape[:-1], weight.shape[0], dtype=torch.int32)
    return total


def linear_rows(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, K] times weight [N, K] transposed; a row's bits do not depend on the other rows."""
    rows = x.shape[0]
    if rows < _MIN_ROWS:
        x = functional.pad(x, (0, 0, 0, _MIN_ROWS - rows))
    return functional.linear(x, weight)[:rows]
