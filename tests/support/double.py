"""Evaluate transformers' own modelling code in F64 throughout.

transformers computes norms, rotary angles, router and index scores and the softmax in F32 whatever
the model's dtype. Inside :func:`double_precision` the name ``torch.float32`` of its modelling
module and ``Tensor.float`` mean F64, so that the same code becomes the F64 oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
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
