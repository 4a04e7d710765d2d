"""Parameters of quantised layers: how their parts are cut for this rank, and which have arrived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


class Loader:
    """Places the parts of one parameter and remembers which have arrived.

    Args:
        place: (part key, full tensor) -> (view of the parameter, slice of the tensor for it).
        parts: keys of all parts of this rank.
    """

    def __init__(
        self, place: Callable[[Any, Tensor], tuple[Tensor, Tensor]], parts: set[Any]
    ) -> None:
        self.place = place
        self.parts = parts
        self.arrived: set[Any] = set()

    def load(self, key: Any, tensor: Tensor) -> None:
        """Copy ``tensor`` into part ``key``.

        Raises:
            ValueError: shape or dtype differ, or the part has arrived before.
        """
        target, source = self.place(key, tensor)
        if target.shape != source.shape:
            raise ValueError(f"it has shape {list(source.shape)}, not {list(target.shape)}")
        if not source.is_floating_point() and source.dtype != target.dtype:
            raise ValueError(f"it is {source.dtype}, not {target.dtype}")
        if key in self.arrived:
            raise ValueError("it occurs twice")
        target.copy_(source)
        self.arrived.add(key)


def make_parameter(
    data: Tensor, loader: Loader, weight_loader: Callable[..., Any], *, optional: bool = False
) -> Parameter:
    """Parameter that vLLM's model loader fills through ``weight_loader``."""
    parameter: Any = Parameter(data, requires_grad=False)
    parameter.weight_loader = weight_loader
    parameter.glm5_loader = loader
    parameter.optional = optional
    return parameter  # type: ignore[no-any-return]


def missing_parts(parameter: Tensor) -> set[Any]:
    """Keys of the parts of a quantised parameter that have not arrived; empty for others."""
    loader = getattr(parameter, "glm5_loader", None)
    return set() if loader is None else loader.parts - loader.arrived


def start_over(parameter: Tensor) -> None:
    """Forget what has arrived: the tensors of a checkpoint are about to be read again."""
    if loader := getattr(parameter, "glm5_loader", None):
        loader.arrived.clear()


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros; a part that never arrives is reported, not used."""
    return torch.zeros(shape, dtype=dtype)
