"""Matrix products through oneDNN with weights packed once, as every CPU backend may use them.

A packed weight is a copy in the order in which oneDNN's kernels read it: as many bytes again as the
weight. It is made at the first product that wants it and lives as long as the storage of the
weight; it is made anew when the weight was written in place since (torch's version counter) or
lies elsewhere. torch does not count writes through ``.data`` and writes to tensors that were made
in inference mode: call :func:`forget` after those.

Measured here (Zen 4, one thread): packing pays from two rows on. For one row ``torch._int_mm``
reads the weight as it is and is as fast as memory; for more rows it packs at every call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from glm5_ascend.ops.matmul import int_matmul, is_exact, linear_rows

# F32 holds every whole number up to 2^24; lengths are computed with an error far below 0.1 %.
_EXACT = 0.999 * (1 << 24)
# oneDNN takes another kernel for one row, which adds in another order.
_MIN_ROWS = 2
# id of a storage -> (place, version) of a view -> (bytes, packed); leaves with its storage.
_packed: dict[int, dict[tuple[Hashable, int], tuple[int, Any]]] = {}


def int8_matmul(x: Tensor, weight: Tensor, *, exact: bool) -> Tensor:
    """Sums of products of int8 x [T, K] and int8 weight [N, K], as int32 or as F32 [T, N].

    int32 results are exact. F32 results are exact if ``exact``, and otherwise the exact sum rounded
    once (sums beyond 2^24), which is what converting it to F32 gives. Either way a row's bits
    depend on that row and the weight alone.
    """
    if (x.shape[0] <= 1 and weight.is_contiguous()) or not _is_usable():
        return int_matmul(x, weight)
    packed, longest = _pack(weight, _pack_int8)
    if exact and longest * _longest_row(x) >= _EXACT:
        return int_matmul(x, weight)
    return _onednn_int8(x, packed)


def float_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """[T, N] of x [T, K] and weight [N, K], both of one float dtype, F32 sums (F64 for F64).

    BF16 and F32 go through oneDNN, other formats through ``linear_rows``. A row's bits ignore the
    other rows: measured, not promised by oneDNN (tests/ops/test_mlapo_prepacked.py).
    """
    if x.dtype not in (torch.bfloat16, torch.float32) or not _has_onednn():
        return linear_rows(x, weight)
    rows = x.shape[0]
    packed = _pack(weight, _pack_float)
    if rows < _MIN_ROWS:
        x = functional.pad(x, (0, 0, 0, _MIN_ROWS - rows))
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return y[:rows]


def forget(weight: Tensor) -> None:
    """Drop what was packed for the storage of ``weight``."""
    _packed.pop(id(weight.untyped_storage()), None)


def packed_bytes() -> int:
    """Memory of all packed weights, without the padding that oneDNN may add."""
    return sum(n for views in _packed.values() for n, _ in views.values())


def _pack(weight: Tensor, pack: Callable[[Tensor], Any]) -> Any:
    storage = weight.untyped_storage()
    views = _packed.get(id(storage))
    if views is None:
        views = _packed[id(storage)] = {}
        weakref.finalize(storage, _packed.pop, id(storage), None).atexit = False
    place = weight.data_ptr(), weight.dtype, weight.shape, weight.stride()
    version = -1 if weight.is_inference() else weight._version
    found = views.get((place, version))
    if found is None:
        for key in [key for key in views if key[0] == place]:
            del views[key]
        found = views[place, version] = weight.nbytes, pack(weight.contiguous())
    return found[1]


def _pack_int8(weight: Tensor) -> tuple[Tensor, float]:
    """(packed weight, Euclidean length of the longest row)."""
    shape = [_MIN_ROWS, weight.shape[1]]
    longest = max(_longest_row(part) for part in torch.split(weight, 1024))
    return torch.ops.onednn.qlinear_prepack(weight, shape), longest


def _pack_float(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


def _longest_row(codes: Tensor) -> float:
    # |x . w| <= |x| |w| bounds every sum, and every partial one of any order.
    return float(torch.linalg.vector_norm(codes.float(), dim=1).max()) if codes.numel() else 0.0


def _onednn_int8(x: Tensor, packed: Tensor) -> Tensor:
    # oneDNN has fast kernels for unsigned activations, whose zero point it takes off as an integer.
    unsigned = x.contiguous().view(torch.uint8) ^ 128
    one, zero = _unit_scale()
    y: Tensor = torch.ops.onednn.qlinear_pointwise(
        unsigned, 1.0, 128, packed, one, zero, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return y


@cache
def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


@cache
def _unit_scale() -> tuple[Tensor, Tensor]:
    return torch.ones(1), torch.zeros(1, dtype=torch.int32)


@cache
def _is_usable() -> bool:
    return is_exact(lambda x, weight: _onednn_int8(x, _pack_int8(weight)[0]), _MIN_ROWS)
