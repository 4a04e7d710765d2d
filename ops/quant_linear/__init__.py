"""Int8 linear layers and their activation quantisation."""

from glm5_ascend.ops.quant_linear.api import (
    dynamic_quant,
    linear_w8a8_dynamic,
    linear_w8a8_static,
)

__all__ = ["dynamic_quant", "linear_w8a8_dynamic", "linear_w8a8_static"]
