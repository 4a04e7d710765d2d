"""Matrix products with a promise: exact integers, and floats whose rows ignore the batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

# |int8 * int8| <= 2^14, so sums of up to 1023 products stay below 2^24 and are exact in F32
# whatever the order of the additions.
EXACT_TERMS = 1023
# Below 4 rows or 10 columns MKL takes kernels that add in another order.
_MIN_SIZE = 16
_CUDA_ROWS = 32


def int_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Exact int32 [.., N] of int8 x [.., K] and int8 weight [N, K]."""
    rows = x.reshape(-1, x.shape[-1])
    if _on_cuda(x) and _fits_cuda(rows, weight):
        return int_mm_padded(rows, weight).view(*x.shape[:-1], -1)
    if _is_plain(rows) and library_is_exact(x.device, weight):
        return torch._int_mm(rows, weight.T).view(*x.shape[:-1], -1)
    return _int_matmul_in_float(x, weight)


def library_is_exact(device: torch.device, weight: Tensor) -> bool:
    """Whether ``int_matmul`` of plain rows on ``device`` and this weight is one library call."""
    return device.type == "cpu" and _is_plain(weight) and _int_mm_is_exact()


def _on_cuda(x: Tensor) -> bool:
    return x.is_cuda


def _fits_cuda(rows: Tensor, weight: Tensor) -> bool:
    """Whether cuBLASLt's int8 product takes these matrices; it wants both widths in eights."""
    return _is_plain(rows) and _is_plain(weight) and not (weight.shape[0] | weight.shape[1]) % 8


def int_mm_padded(rows: Tensor, weight: Tensor) -> Tensor:
    """``torch._int_mm`` of int8 rows [T, K] and weight [N, K], which on a GPU takes 17 rows or
    more; there its sums are exact by construction. Not run on a GPU yet."""
    missing = max(0, _CUDA_ROWS - len(rows))
    return torch._int_mm(functional.pad(rows, (0, 0, 0, missing)), weight.T)[: len(rows)]


def _is_plain(matrix: Tensor) -> bool:
    # torch._int_mm returns uninitialised memory where strides leave the storage order open.
    return matrix.shape[1] > 1 and len(matrix) > 0 and matrix.stride() == (matrix.shape[1], 1)


def _int_matmul_in_float(x: Tensor, weight: Tensor) -> Tensor:
    total = torch.zeros(*x.shape[:-1], weight.shape[0], dtype=torch.int32, device=x.device)
    for start in range(0, x.shape[-1], EXACT_TERMS):
        part = slice(start, start + EXACT_TERMS)
        total += functional.linear(x[..., part].float(), weight[..., part].float()).to(torch.int32)
    return total


@cache
def _int_mm_is_exact() -> bool:
    return is_exact(lambda x, weight: torch._int_mm(x, weight.T), 1)


def is_exact(product: Callable[[Tensor, Tensor], Tensor], least_rows: int) -> bool:
    """Whether a library's int8 product neither saturates nor refuses on this processor.

    Without VNNI instructions oneDNN may add pairs of products in 16 bits.

    Args:
        product: of int8 x [T, K] and int8 weight [N, K], in int32 or F32 [T, N].
        least_rows: fewest rows that it is used for.
    """
    for rows, terms in ((least_rows, 64), (5, 200), (40, 96)):
        x = torch.full((rows, terms), 127, dtype=torch.int8)
        weight = torch.full((24, terms), -128, dtype=torch.int8)
        x[:, 1::3], weight[::2] = -128, 127
        try:
            y = product(x, weight)
        except (RuntimeError, AttributeError):
            return False
        if not torch.equal(y, _int_matmul_in_float(x, weight).to(y.dtype)):
            return False
    return True


def linear_rows(x: Tensor, weight: Tensor) -> Tensor:
    """[T, N] of x [T, K] and weight [N, K]; in F32 a row's bits ignore the other rows.

    Measured, not guaranteed by BLAS: tests/ops/test_batch_invariance.py.
    """
    rows, columns = x.shape[0], weight.shape[0]
    if rows < _MIN_SIZE:
        x = functional.pad(x, (0, 0, 0, _MIN_SIZE - rows))
    if columns < _MIN_SIZE:
        weight = functional.pad(weight, (0, 0, 0, _MIN_SIZE - columns))
    return functional.linear(x, weight)[:rows, :columns]
