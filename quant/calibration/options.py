"""What a user can say about a calibration; no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from glm5_ascend.errors import ConfigError
from glm5_ascend.quant.recipe_rules import Recipe, Rule, SmoothingName
from glm5_ascend.quant.scheme import Scheme

Propagate = Literal["quantised", "float"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a calibration is carried out; everything here changes values, except ``threads``.

    Attributes:
        propagate: what the next layer sees: the outputs of the rounded layer, or of the float one.
        min_tokens: experts with fewer tokens are rounded from their weights alone.
        prior: rows of the layer's average input, per input channel, that are added to the moments
            of an expert's gate and up.
        shrink: how much the diagonal of moments of few rows is raised, see ``Moments.factor``.
        damp: share of the mean diagonal that is added to a Hessian's diagonal.
        sample: rows of an input that searches are done with.
        threads: how many work side by side.
    """

    propagate: Propagate = "quantised"
    min_tokens: int = 64
    prior: float = 1.0
    shrink: float = 1.5
    damp: float = 0.01
    sample: int = 512
    threads: int = 1


USUAL = Setting()
_USUAL_SMOOTHING: tuple[SmoothingName, ...] = ("fit",)


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """What the command line says about a calibration; None is what the recipe says.

    Attributes:
        text: a file, or ``default``. Where nothing in the recipe needs one, int4 modules are then
            rounded by GPTQ, or all of them if there are none in int4, and vectors are fitted in
            dense blocks and shared experts.
        tokens: budget.
        work_dir: for activations; a hidden directory beside the destination if None.
        setting: how to calibrate; its threads are the workers of the run.
    """

    text: str | None = None
    tokens: int | None = None
    work_dir: Path | None = None
    setting: Setting = USUAL

    def directory(self, destination: Path) -> Path:
        """Where activations go."""
        absolute = destination.absolute()
        return self.work_dir or absolute.with_name(f".{absolute.name}.calibration")

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with this text and budget.

        Raises:
            ConfigError: an option of calibrations for a recipe without one.
        """
        if self.text is not None and not (recipe.needs_calibration or recipe.is_float):
            recipe = replace(recipe, rules=_calibrated(recipe.rules), smoothing=_USUAL_SMOOTHING)
        if not recipe.needs_calibration:
            if self != FROM_RECIPE:
                raise ConfigError(
                    f"recipe {recipe.name} needs no calibration",
                    "give --calibration TEXT, or leave away what else is about calibrations",
                )
            return recipe
        given = recipe.calibration
        text = given.text if self.text is None else self.text
        tokens = given.tokens if self.tokens is None else self.tokens
        return replace(recipe, calibration=replace(given, text=text, tokens=tokens))


FROM_RECIPE = CalibrationOptions()


def _calibrated(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    quantised = {rule.scheme for rule in rules} - {Scheme.FLOAT}
    chosen = {Scheme.W4A8_DYNAMIC} & quantised or quantised
    return tuple(
        replace(rule, rounding="gptq")
        if rule.scheme in chosen and rule.rounding == "search"
        else rule
        for rule in rules
    )
