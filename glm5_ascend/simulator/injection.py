"""Test hook: choices (top-k positions, experts) that the engine must follow instead of its own.

``GLM5_ASCEND_INJECT`` names a safetensors file with ``layers.{i}.topk_indices`` int32 [T, topk]
(ascending, -1 padded; layers that own an indexer) and ``layers.{i}.expert_ids`` int32 [T, top_k].
Row t belongs to position t of the one sequence under test; positions beyond T are the engine's own
choice. Expert weights are computed from the engine's router logits at the given experts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from glm5_ascend.env import read
from glm5_ascend.errors import ConfigError

INDICES = "topk_indices"
EXPERTS = "expert_ids"


class Positions:
    """Positions int64 [T] of the tokens in the running forward pass of one model."""

    def __init__(self) -> None:
        self.current = torch.empty(0, dtype=torch.int64)


class Injected:
    """Choices of one kind for one layer, int32 [T, width]."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def replace(self, own: Tensor, positions: Tensor) -> Tensor:
        """``own`` int32 [n, width] with the rows of known positions replaced.

        The width of a choice file may be smaller (then -1 fills the rest) but not larger.
        """
        count, width = self.rows.shape
        if width > own.shape[1]:
            raise ConfigError(
                f"injected choices are {width} wide, the engine's {own.shape[1]}",
                "make the choice file with the configuration of the served checkpoint",
            )
        known = positions < count
        result = own.clone()
        result[known] = -1
        result[known, :width] = self.rows[positions[known]].to(own.dtype)
        return result


def injected(layer: int, kind: str) -> Injected | None:
    """What the file says about ``kind`` (``INDICES`` or ``EXPERTS``) of ``layer``, if anything."""
    rows = _load(read("GLM5_ASCEND_INJECT")).get(f"layers.{layer}.{kind}")
    return None if rows is None else Injected(rows)


@cache
def _load(path: str) -> dict[str, Tensor]:
    if not path:
        return {}
    if not Path(path).is_file():
        raise ConfigError(
            f"GLM5_ASCEND_INJECT names {path}, which is no file", "unset GLM5_ASCEND_INJECT"
        )
    return load_file(path)
