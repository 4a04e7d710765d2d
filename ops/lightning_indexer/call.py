"""Arguments of a call as a backend gets them, for the backends on an NPU."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from glm5_ascend.ops.layout import Keys, Queries


@dataclass(frozen=True, slots=True)
class Call:
    """One call of ``forward``, or with ``scales`` (of query and key) of ``forward_quant``."""

    query: Tensor
    key: Tensor
    weights: Tensor
    requests: Queries
    keys: Keys
    count: int
    causal: bool
    sorted: bool = False
    return_value: bool = False
    scales: tuple[Tensor, Tensor] | None = None
