"""MLA pre-processing: from the input of a layer to queries and cache rows."""

from glm5_ascend.ops.mlapo.api import mlapo

__all__ = ["mlapo"]
