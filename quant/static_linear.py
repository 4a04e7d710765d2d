"""The tensors of a static W8A8 linear from its codes and the range of its input.

With ``x_q = clip(round(x / s_x) + z, -128, 127)`` and codes ``w_q`` of scale ``s_w`` per row:
``y = (Σ x_q w_q + quant_bias) · deq_scale``, where ``deq_scale = s_x s_w`` and
``quant_bias = -z Σ w_q`` removes the offset.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_ascend.quant.solutions import StaticRange


def static_tensors(codes: Tensor, scale: Tensor, given: StaticRange) -> dict[str, Tensor]:
    """What is stored beside weight and scale.

    Args:
        codes: int8 [out, in].
        scale: float32 [out, 1], exact in bfloat16; then its product with the input's scale is
            exact in float32.
        given: the input's range.

    Returns:
        ``deq_scale`` float32 [out], ``quant_bias`` int32 [out], ``input_scale`` and
        ``input_offset`` float32 [1].

    Raises:
        ValueError: a scale that is not exact in bfloat16, or an offset that is no int8.
    """
    step = torch.tensor([given.scale], dtype=torch.float64)
    for name, value in (("input_scale", step), ("weight_scale", scale)):
        if not torch.equal(value.bfloat16().double(), value.double()) or bool((value <= 0).any()):
            raise ValueError(f"{name} must be positive and exact in bfloat16")
    if given.offset != int(given.offset) or not -128 <= given.offset <= 127:
        raise ValueError(f"input_offset must be a whole number of [-128, 127], got {given.offset}")
    return {
        "deq_scale": (step * scale[:, 0].double()).float(),
        "quant_bias": (-int(given.offset) * codes.sum(1, dtype=torch.int64)).to(torch.int32),
        "input_scale": step.float(),
        "input_offset": torch.tensor([float(given.offset)]),
    }
