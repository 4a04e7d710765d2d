"""Argument checks shared by the operators.

They read shapes, strides, dtypes and devices only, so they also hold for the fake tensors of
``torch.compile``. Each raises :class:`ArgumentError` with what was expected and what came.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.ops.errors import ArgumentError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int32, torch.int64)
UNLIMITED = (1 << 63) - 1  # torch_npu's default of pre_tokens and next_tokens


def described(tensor: Tensor) -> str:
    """Dtype and shape in a message: ``float32 [2, 3]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Refuse a scalar argument that is not in ``allowed``."""
    if value not in allowed:
        choices = " or ".join(map(repr, allowed))
        raise ArgumentError(f"{name} must be {choices}, not {value!r}")


def dtype(name: str, tensor: Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    """Refuse a tensor of another dtype."""
    if tensor.dtype not in allowed:
        names = " or ".join(str(d).removeprefix("torch.") for d in allowed)
        raise ArgumentError(f"{name} must be {names}, not {described(tensor)}")


def shape(name: str, tensor: Tensor, expected: tuple[object, ...]) -> None:
    """Refuse a tensor of another shape."""
    if tensor.shape != expected:
        raise ArgumentError(f"{name} must have shape {list(expected)}, not {list(tensor.shape)}")


def dense(name: str, tensor: Tensor) -> None:
    """Refuse a tensor whose last axis has gaps; its other axes may have any strides."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1 and tensor.numel():
        raise ArgumentError(
            f"the last axis of {name} must be dense (stride 1), not strides {tensor.stride()} of "
            f"shape {list(tensor.shape)}",
            f"pass {name}.contiguous()",
        )


def rows(name: str, tensor: Tensor) -> None:
    """Refuse a tensor that is not rows at one distance: all axes but the last must merge.

    Such a tensor may be columns of a wider one, but flattening it must not copy a whole cache.
    """
    if tensor.is_contiguous():
        return
    dense(name, tensor)
    sizes, strides = tensor.shape, tensor.stride()
    expected = -1
    for axis in range(tensor.ndim - 2, -1, -1):
        if sizes[axis] == 1:
            continue
        if expected not in (-1, strides[axis]) and tensor.numel():
            raise ArgumentError(
                f"{name} must hold its rows at one distance, not with strides {strides} of shape "
                f"{list(sizes)}",
                f"pass {name}.contiguous()",
            )
        expected = sizes[axis] * strides[axis]


def device(name: str, tensor: Tensor, first: str, expected: torch.device) -> None:
    """Refuse a tensor on another device than the argument ``first``."""
    if tensor.device != expected:
        raise ArgumentError(
            f"{name} must be on the device of {first}, {expected}, not on {tensor.device}",
            "move all tensors of the call to one device",
        )


# A reduction takes as long as reading this many numbers one by one.
_FEW = 64


def extremes(integers: Tensor) -> tuple[int, int]:
    """Least and greatest of a tensor that is not empty; a decode step asks for those of few."""
    if integers.numel() <= _FEW:
        values = integers.flatten().tolist()
        return min(values), max(values)
    low, high = torch.aminmax(integers)
    return int(low), int(high)


def unlimited(pre_tokens: int, next_tokens: int) -> None:
    """Refuse windows, which torch_npu's schema names and its operators refuse too."""
    for name, value in (("pre_tokens", pre_tokens), ("next_tokens", next_tokens)):
        if value != UNLIMITED:
            raise ArgumentError(f"{name} must be 2**63 - 1 (no window), not {value}")
