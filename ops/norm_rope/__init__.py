"""Norms and rotary embedding of the pre-processing around sparse attention."""

from glm5_ascend.ops.norm_rope.api import (
    layer_norm,
    rms_norm,
    rotary_interleaved,
    rotary_table,
)

__all__ = ["layer_norm", "rms_norm", "rotary_interleaved", "rotary_table"]
