"""Smoothing vectors of one layer, searched on a sample of its activations.

``flex`` (:func:`smooth_search`) takes the inputs of attention's linears and the value heads;
``fit`` (:func:`fitted_search`) the up projections of dense and shared blocks, ``fit-experts`` those
of routed experts; so does ``awq``, where a down projection by GPTQ has its vector chosen by what
GPTQ leaves (:func:`pivot_search`). Every reader of an activation gets its columns multiplied,
quantised or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from glm5_ascend.quant.calibration.folded_store import FoldedStore
from glm5_ascend.quant.methods.fitted_smoothing import fitted_search
from glm5_ascend.quant.methods.grid import INT4, INT8, Grid
from glm5_ascend.quant.methods.hessian import Factor
from glm5_ascend.quant.methods.smooth_groups import Group, factors, group_of, merged
from glm5_ascend.quant.methods.smoothing import (
    Consumer,
    awq_search,
    pivot_search,
    smooth_search,
)
from glm5_ascend.quant.recipe import Step
from glm5_ascend.quant.scheme import Scheme

ExpertMethod = Literal["awq", "fit"]

# Rows that a vector is fitted to; with a tenth of them the fit does not hold for other text.
FIT_ROWS = 8192
# Activations that vectors divide, by what the attention run calls the input of their readers.
ATTENTION: Mapping[str, str] = {
    "block": "input_layernorm",
    "query": "q_a_layernorm",
    "values": "values",
}


def expert_method(smoothing: Sequence[str]) -> ExpertMethod | None:
    """What finds the vectors of routed experts by a recipe's methods."""
    if "fit-experts" in smoothing:
        return "fit"
    return "awq" if "awq" in smoothing else None


def grid_of(step: Step) -> Grid | None:
    """Codes of a step; None for one that stays float."""
    if step.scheme is Scheme.FLOAT:
        return None
    return INT4 if step.scheme is Scheme.W4A8_DYNAMIC else INT8


def is_quantised(store: FoldedStore, group: Group) -> bool:
    """Whether a vector can matter: a reader of the activation is quantised."""
    return any(store.steps[name].scheme is not Scheme.FLOAT for name in group.consumers)


def smooth(store: FoldedStore, layer: int, samples: Mapping[str, Tensor]) -> None:
    """Search a vector for each sampled activation and put the factors into ``store.scales``.

    Args:
        store: weights, without vectors on these activations.
        layer: index.
        samples: F32 [T, width] by the activation's name in :func:`group_of`.
    """
    found = [store.scales]
    for activation, sample in samples.items():
        group = group_of(store.config, layer, activation)
        if not is_quantised(store, group):
            continue
        gamma = None
        if store.steps[group.producer].shape == (group.width,):
            gamma = store.float(group.producer)
        vector = smooth_search(sample, _consumers(store, group), gamma=gamma).vector
        found.append(factors(group, vector))
    store.scales = merged(found)


def fit(store: FoldedStore, layer: int, block: str, sample: Tensor) -> None:
    """Fit the vector between up and down of a block and put it into ``store.scales``.

    Args:
        store: weights, without a vector there.
        layer: index.
        block: as in :func:`group_of`.
        sample: F32 [T, width] of the activations.
    """
    group = group_of(store.config, layer, block)
    if is_quantised(store, group) and len(sample):
        vector = fitted_search(spread(sample, FIT_ROWS), _consumers(store, group)).vector
        # In place: experts are fitted side by side.
        store.scales.update(factors(group, vector))


def expert_vector(
    store: FoldedStore, layer: int, expert: int, sample: Tensor, factor: Factor | None
) -> None:
    """Search the vector between up and down of one expert and put it into ``store.scales``.

    Args:
        store: weights.
        layer: index.
        expert: index.
        sample: F32 [T, width] of the activations.
        factor: of all activations' second moments, if the down projection is rounded by GPTQ.
    """
    group = group_of(store.config, layer, f"mlp.experts.{expert}")
    if not is_quantised(store, group) or not len(sample):
        return
    consumers = _consumers(store, group)
    if factor is None:
        vector = awq_search(sample, consumers).vector
    else:
        vector = pivot_search(sample, consumers, factor).vector
    for name, scales in factors(group, vector).items():
        store.scales[name] = scales


def _consumers(store: FoldedStore, group: Group) -> list[Consumer]:
    return [Consumer(store.weight(name), grid_of(store.steps[name])) for name in group.consumers]


def spread(rows: Tensor, most: int) -> Tensor:
    """At most ``most`` rows, evenly spread."""
    if len(rows) <= most:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, most).long()]
