"""Fused kernels of the quantiser in C++ (csrc/): source bytes in, codes and scales out."""

from glm5_ascend.quant.native.kernel import Source, fold, fold_float, require_kernels

__all__ = ["Source", "fold", "fold_float", "require_kernels"]
