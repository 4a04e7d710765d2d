"""Where Triton kernels run.

On a CPU they run in Triton's interpreter, if ``TRITON_INTERPRET=1`` is set before Triton is first
imported: slowly, one program after another, for tests.
"""

from __future__ import annotations

import os

from torch import Tensor

from glm5_ascend.ops.errors import ArgumentError

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Rows or columns of a product, at least; smaller ones are padded.
LEAST = 16


def check_device(tensor: Tensor) -> None:
    """Refuse tensors that the kernels cannot reach.

    Raises:
        ArgumentError: a tensor that is not on a CUDA device, outside of the interpreter.
    """
    if not (tensor.is_cuda or (INTERPRETED and tensor.is_cpu)):
        raise ArgumentError(
            f"backend 'triton' takes CUDA tensors, not one on {tensor.device}",
            "move the tensors, or choose backend 'reference' (--op-backend reference)",
        )


def padded(size: int, least: int = LEAST) -> int:
    """The power of two that a tile of ``size`` rows or columns has."""
    return max(least, 1 << (size - 1).bit_length())
