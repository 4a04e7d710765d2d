"""What a calibration hands to the writer: finished tensors, smoothing scales, static ranges.

The writer asks for each step; without an answer it works from the weights alone. Everything here
is in the folded and rotated basis, the one in which the NPU quantises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from glm5_ascend.quant.recipe import Step


@dataclass(frozen=True, slots=True)
class SmoothScales:
    """Factors of a step's tensor, applied after folding and rotation and before rounding.

    Attributes:
        rows: F64 [out], positive; for a norm's γ, which is ones after rotation, [width].
        columns: F64 [in], positive.
    """

    rows: Tensor | None = None
    columns: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StaticRange:
    """How a static W8A8 linear quantises its input: ``clip(round(x / scale) + offset)``.

    Attributes:
        scale: positive and exact in bfloat16, the engine's type for it.
        offset: a whole number of [-128, 127].
    """

    scale: float
    offset: int


class Solutions(Protocol):
    """Answers for the steps of a plan; an object that pickles small, for worker processes."""

    def tensors(self, step: Step) -> dict[str, Tensor] | None:
        """The finished tensors of ``stored_form``; None has them made from the weights."""

    def scales(self, step: Step) -> SmoothScales | None:
        """Factors of the step's rows and columns; None for no smoothing."""

    def static_range(self, step: Step) -> StaticRange | None:
        """Input range of a W8A8 step, which cannot be written without one."""


@dataclass(frozen=True, slots=True)
class NoSolutions:
    """A run without calibration."""

    def tensors(self, step: Step) -> dict[str, Tensor] | None:
        """None."""
        return None

    def scales(self, step: Step) -> SmoothScales | None:
        """None."""
        return None

    def static_range(self, step: Step) -> StaticRange | None:
        """None."""
        return None


NO_SOLUTIONS = NoSolutions()
