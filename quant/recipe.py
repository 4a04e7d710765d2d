"""One decision per output tensor, with its reason, from configuration and recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from glm5_ascend.checkpoint import TensorSpec, expected_tensors
from glm5_ascend.config import Glm5Config
from glm5_ascend.quant import compressed_tensors
from glm5_ascend.quant.folding import NO_FOLD, Fold, fold_of, is_norm
from glm5_ascend.quant.recipe_rules import (
    STORED_DTYPE,
    Decision,
    DtypeName,
    Recipe,
    RoundingName,
    Rule,
    assign,
)
from glm5_ascend.quant.scheme import Scheme, stored_tensors

__all__ = [
    "STORED_DTYPE",
    "Action",
    "DtypeName",
    "Recipe",
    "Rule",
    "Step",
    "has_mtp_copies",
    "recycled_step",
    "steps",
]


class Action(StrEnum):
    """What happens to a tensor's values."""

    MATRIX = "matrix"  # fold, rotate, quantise
    ONES = "ones"  # a norm whose γ went into the next matrices
    COPY = "copy"  # converted to the float dtype at most
    RECYCLED = "recycled"  # rot.weight, made from the γ of model.norm


@dataclass(frozen=True, slots=True)
class Step:
    """One source tensor and everything that becomes of it.

    ``name`` is the tensor's name in the output, ``source`` in the input; they differ only for the
    MTP layer's copies of embedding and head. ``stored`` are the tensors written, in file order.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    action: Action
    scheme: Scheme
    rounding: RoundingName
    float_dtype: str
    fold: Fold
    reason: str
    stored: dict[str, TensorSpec]


def recycled_step(config: Glm5Config, recipe: Recipe) -> Step:
    """The step that makes ``rot.weight``, what the MTP layer multiplies its input state with."""
    shape = (config.hidden_size, config.hidden_size)
    dtype = STORED_DTYPE[recipe.dtype]
    return Step(
        name="rot.weight",
        source="model.norm.weight",
        shape=shape,
        action=Action.RECYCLED,
        scheme=Scheme.FLOAT,
        rounding="nearest",
        float_dtype=dtype,
        fold=NO_FOLD,
        reason="restores the γ of model.norm in the rotated basis",
        stored={"rot.weight": TensorSpec(shape, dtype)},
    )


def steps(config: Glm5Config, recipe: Recipe) -> Iterator[Step]:
    """Yield every step in model order, experts one by one.

    Raises:
        ConfigError: a rule that does not fit the model, or a dimension that the chosen scheme or
            rotation cannot handle.
    """
    tensors = {
        name: spec.shape
        for name, spec in expected_tensors(config).items()
        if not name.endswith("_scale_inv")
    }
    if recipe.format == compressed_tensors.NAME:
        compressed_tensors.require_expressible(recipe)
    decided = assign(config, recipe, tensors)
    for name, shape in tensors.items():
        yield _step(config, recipe, name, name, shape, decided[name])
        if name.endswith(".shared_head.norm.weight") and has_mtp_copies(recipe):
            prefix = name.removesuffix("shared_head.norm.weight")
            for copy, source in (
                ("shared_head.head.weight", "lm_head.weight"),
                ("embed_tokens.weight", "model.embed_tokens.weight"),
            ):
                yield _step(config, recipe, prefix + copy, source, tensors[source], decided[source])


def has_mtp_copies(recipe: Recipe) -> bool:
    """Whether the MTP layer gets its own embedding and head.

    With rotation it needs them: the head's copy carries ``shared_head.norm``'s γ instead of
    ``model.norm``'s. Quantised engines up to 0.26 leave absent ones uninitialised without an
    error. Only a plain, unrotated output looks like the source and shares them.
    """
    return recipe.format == "ascend" and (recipe.rotate or not recipe.is_float)


def _step(
    config: Glm5Config,
    recipe: Recipe,
    name: str,
    source: str,
    shape: tuple[int, ...],
    decision: Decision,
) -> Step:
    dtype = _float_dtype(config, recipe, name)
    action, fold, reason = Action.COPY, NO_FOLD, decision.reason
    stored = {name: TensorSpec(shape, dtype)}
    if len(shape) == 2:
        action = Action.MATRIX
        fold = _fold(config, recipe, name)
        stored = _stored(recipe, name, (shape[0], shape[1]), decision.scheme, dtype)
    elif is_norm(name) and _is_fused(config, recipe, name):
        action, reason = Action.ONES, "RMSNorm, γ fused into the matrices that read it"
    return Step(
        name,
        source,
        shape,
        action,
        decision.scheme,
        decision.rounding,
        dtype,
        fold,
        reason,
        stored,
    )


def _fold(config: Glm5Config, recipe: Recipe, name: str) -> Fold:
    if not recipe.rotate:
        return NO_FOLD
    fold = fold_of(config, name)
    whole = compressed_tensors.turns_residual(config, recipe)
    return fold if whole else compressed_tensors.without_residual(fold)


def _is_fused(config: Glm5Config, recipe: Recipe, name: str) -> bool:
    """Whether the γ of a norm goes into the matrices that read it."""
    whole = compressed_tensors.turns_residual(config, recipe)
    return recipe.rotate and (whole or compressed_tensors.is_inner_norm(name))


def _stored(
    recipe: Recipe, name: str, shape: tuple[int, int], scheme: Scheme, dtype: str
) -> dict[str, TensorSpec]:
    planned = stored_tensors(name, shape, scheme, dtype)
    if recipe.format == "ascend" or scheme is Scheme.FLOAT:
        return planned
    return compressed_tensors.stored(name, shape, scheme)


def _float_dtype(config: Glm5Config, recipe: Recipe, name: str) -> str:
    """Router values stay F32: engines compute routing in F32, and a rotated router is no BF16."""
    is_turned = compressed_tensors.turns_residual(config, recipe)
    is_rotated_router = is_turned and name.endswith(".mlp.gate.weight")
    if name.endswith(".e_score_correction_bias") or is_rotated_router:
        return "F32"
    return STORED_DTYPE[recipe.dtype]
