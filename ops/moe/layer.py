"""What describes one linear layer of all experts."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Layer(NamedTuple):
    """``weight``, ``scale`` and ``scale_bias`` of ``w13`` or ``w2``, as ``moe_experts`` takes them.

    The scheme shows in what is there: no scale is float, a scale alone is w8a8, both are w4a8.
    """

    weight: Tensor
    scale: Tensor | None
    scale_bias: Tensor | None
