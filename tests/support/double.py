"""Evaluate transformers' own modelling code in F64 throughout.

transformers computes norms, rotary angles, router and index scores and the softmax in F32 whatever
the model's dtype. Inside :func:`double_precision` the name ``torch.float32`` of its modelling
module and ``Tensor.float`` mean F64, so that the same code becomes the F64 oracle. Rotary angles
stay those of F32 (:class:`F32Angles`): every engine builds its table in F32, which defines the
model; at position 500 an exact angle differs by 3e-5, far more than F32 rounding elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as modeling


class _DoubleTorch:
    float = torch.float64
    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def double_precision() -> Iterator[None]:
    """Let transformers' GLM code mean F64 where it says F32."""
    with (
        mock.patch.object(modeling, "torch", _DoubleTorch()),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


class F32Angles(nn.Module):
    """Rotary embedding with F32 frequencies, angles and cosines, returned in the dtype of x."""

    def __init__(self, rope_theta: float, width: int) -> None:
        super().__init__()
        exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
        self.inv_freq = nn.Buffer(1.0 / (rope_theta**exponents), persistent=False)

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (cos, sin), each [1, T, width], for positions [1, T]."""
        angles = position_ids.to(torch.float32).unsqueeze(-1) * self.inv_freq
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)
