"""Fused kernels of the quantiser in C++ (csrc/): source bytes in, codes and scales out."""

from glm5_ascend.quant.native.axis import KernelAxis, kernel_axis
from glm5_ascend.quant.native.kernel import (
    NotFinite,
    Rounded,
    Source,
    fold,
    fold_float,
    require_kernels,
)

__all__ = [
    "KernelAxis",
    "NotFinite",
    "Rounded",
    "Source",
    "fold",
    "fold_float",
    "kernel_axis",
    "require_kernels",
]
