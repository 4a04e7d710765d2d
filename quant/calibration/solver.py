"""Rounds one weight by the rule of its step, from its values and what is known of its input."""

from __future__ import annotations

from torch import Tensor

from glm5_ascend.quant.calibration.folded_store import FoldedStore
from glm5_ascend.quant.calibration.options import Setting
from glm5_ascend.quant.calibration.statistics import Wanted
from glm5_ascend.quant.methods.descent import descend
from glm5_ascend.quant.methods.gptq import gptq
from glm5_ascend.quant.methods.grid import INT4, INT8
from glm5_ascend.quant.methods.hessian import Factor
from glm5_ascend.quant.methods.static_range import InputHistogram, static_range
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.recipe_rules import CALIBRATED
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.solutions import StaticRange
from glm5_ascend.quant.stored_form import stored_form


class Solver:
    """Rounds weights [out, in], F32, in the folded and rotated basis."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def wants(self, step: Step) -> bool:
        """Whether the rounding of a step uses the second moments of its input."""
        return step.scheme is not Scheme.FLOAT and step.rounding in CALIBRATED

    def round(
        self,
        store: FoldedStore,
        step: Step,
        factor: Factor | None,
        ranges: InputHistogram | None = None,
    ) -> dict[str, Tensor]:
        """The stored tensors of a step; empty for one that stays float.

        Args:
            store: weights.
            step: what to make.
            factor: of the input's second moments; without one the rounding is data-free.
            ranges: of the input; a static step needs them.
        """
        if step.scheme is Scheme.FLOAT:
            return {}
        given: StaticRange | None = None
        if step.scheme is Scheme.W8A8:
            if ranges is None:
                raise ValueError(f"{step.name} is static, and no range of its input is known")
            given = static_range(ranges)
        if not self.wants(step) or factor is None:
            return store.data_free(step, given)
        grid = INT4 if step.scheme is Scheme.W4A8_DYNAMIC else INT8
        weight = store.weight(step.name)
        found = gptq(weight, factor, grid)
        if step.rounding == "descent":
            found = descend(weight, found, factor, grid)
        return stored_form(step, found.codes, found.scale, given)


def wanted_of(steps: list[Step]) -> Wanted:
    """What the rounding of modules that read one input needs to know of it."""
    quantised = [step for step in steps if step.scheme is not Scheme.FLOAT]
    return Wanted(
        moments=any(step.rounding in CALIBRATED for step in quantised),
        ranges=any(step.scheme is Scheme.W8A8 for step in quantised),
    )
