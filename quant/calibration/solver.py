"""Rounds one weight by the rule of its step, from its values and what is known of its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from glm5_ascend.quant.calibration.statistics import Ranges, Wanted
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.solutions import StaticRange
from glm5_ascend.quant.stored_form import rounded, stored_form

Propagate = Literal["quantised", "float"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a calibration is carried out; everything here changes values, except ``threads``.

    Attributes:
        propagate: what the next layer sees: the outputs of the rounded layer, or of the float one.
        min_tokens: experts with fewer tokens are rounded from their weights alone.
        damp: share of the mean diagonal that is added to a Hessian's diagonal.
        sample: rows of an input that searches are done with.
        threads: how many work side by side.
    """

    propagate: Propagate = "quantised"
    min_tokens: int = 64
    damp: float = 0.01
    sample: int = 512
    threads: int = 1


class Solver:
    """Rounds weights [out, in], F32, in the folded and rotated basis."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def wants(self, step: Step) -> bool:
        """Whether the rounding of a step uses the second moments of its input."""
        return step.scheme is not Scheme.FLOAT and step.rounding == "gptq"

    def round(
        self,
        step: Step,
        weight: Tensor,
        hessian: Tensor | None,
        ranges: Ranges | None = None,
    ) -> dict[str, Tensor]:
        """The stored tensors of a step; empty for one that stays float.

        Args:
            step: what to make.
            weight: F32 [out, in].
            hessian: F32 [in, in], second moments of the input; without one the rounding is
                data-free.
            ranges: of the input; a static step needs them.
        """
        if step.scheme is Scheme.FLOAT:
            return {}
        if self.wants(step) and hessian is not None:
            from glm5_ascend.quant.methods.gptq import gptq

            found = gptq(weight, hessian, step.scheme, damp=self.setting.damp)
            codes, scale = found.codes, found.scale
        else:
            codes, scale = rounded(weight, step)
        given: StaticRange | None = None
        if step.scheme is Scheme.W8A8:
            if ranges is None:
                raise ValueError(f"{step.name} is static, and no range of its input is known")
            from glm5_ascend.quant.methods.ranges import static_range

            given = static_range(ranges)
        return stored_form(step, codes, scale, given)


def wanted_of(steps: list[Step]) -> Wanted:
    """What the rounding of modules that read one input needs to know of it."""
    quantised = [step for step in steps if step.scheme is not Scheme.FLOAT]
    return Wanted(
        moments=any(step.rounding == "gptq" for step in quantised),
        ranges=any(step.scheme is Scheme.W8A8 for step in quantised),
    )
