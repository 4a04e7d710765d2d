"""Mixture of experts: gating, expert layers and int4 packing."""

from glm5_ascend.ops.moe.api import moe_experts, moe_gating
from glm5_ascend.ops.moe.packing import pack_int4, unpack_int4

__all__ = ["moe_experts", "moe_gating", "pack_int4", "unpack_int4"]
