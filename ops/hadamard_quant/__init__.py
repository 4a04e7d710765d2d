"""Hadamard rotation of 128 values with int8 quantisation per token."""

from glm5_ascend.ops.hadamard_quant.api import hadamard_quant

__all__ = ["hadamard_quant"]
