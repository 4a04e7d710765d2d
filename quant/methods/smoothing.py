"""Search of smoothing vectors on exactly what the NPU computes.

For a candidate ``s`` the error that counts is that of the stored layer: the input ``x / s`` is
quantised per token to int8, each reader's ``W diag(s)`` is rounded to its grid, and the outputs
are compared over all readers. The vector that is returned is the one that was measured, with its
entries already snapped to what the engine holds. ``s = 1`` stays when nothing is better.

Candidates are made from every other row of the sample and measured on the rest, and every token
counts by its relative error. Measured on the rows that they come from, by the sum over tokens,
vectors are fitted to a few large tokens: on the small trained model the shared expert's down
projection of layer 1 was then 1.4 times as wrong on other text as without a vector, and is 1.0
times so now.

=======================  ======================  ==================================================
function                 candidates              source
=======================  ======================  ==================================================
:func:`smooth_search`    max|x|^a / max|w|^b     Xiao et al., "SmoothQuant" (2022), both exponents
                                                 free as in msModelSlim's Flex variant
:func:`awq_search`       mean|x|^a               Lin et al., "AWQ" (2023)
:func:`pivot_search`     (√D / rms w)^a          see below
=======================  ======================  ==================================================

Rounding with feedback (:mod:`.gptq`) leaves ``step² · Σ_j D_j`` per row, with a step that grows
with the norm of the row. A vector turns ``D_j`` into ``D_j / s_j²`` and ``w_j`` into ``s_j w_j``;
the product of both sums is least at ``s_j² = √D_j / rms(w_j)`` (Cauchy and Schwarz): a = 1/2. The
search over ``a`` accounts for what that leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.ops import dynamic_quant
from glm5_ascend.quant.methods.gptq import gptq
from glm5_ascend.quant.methods.grid import Grid, to_bfloat16
from glm5_ascend.quant.methods.hessian import Factor
from glm5_ascend.quant.methods.scales import weighted_scale

_STEPS = 20
_PIVOT_STEPS = 6
_TINY = 2.0**-60
# Share of the mean that is added to a token's size, so that tiny tokens do not decide.
_FLOOR = 0.1

Rounder = Callable[[Tensor, Tensor, Grid], Tensor]


@dataclass(frozen=True, slots=True)
class Consumer:
    """A matrix that reads the activation.

    Attributes:
        weight: [out, K] float32.
        grid: what it is rounded to; None for one that stays float and reads the activation
            unquantised (router, indexer's wk), which no vector changes.
    """

    weight: Tensor
    grid: Grid | None


@dataclass(frozen=True, slots=True)
class Smoothing:
    """A vector with its measured effect.

    Attributes:
        vector: float64 [K]; the activation is divided by it, the readers' columns multiplied.
        error: :func:`output_error` with the vector, on the rows that were kept for it.
        plain: the same without.
    """

    vector: Tensor
    error: float
    plain: float


def smooth_search(
    inputs: Tensor, consumers: Sequence[Consumer], *, gamma: Tensor | None = None
) -> Smoothing:
    """Search ``max|x|^a / max|w|^b``: a with b = 1 - a first, then b at the best a.

    Args:
        inputs: sample of the activation [T, K], float32, without any vector.
        consumers: all matrices that read it.
        gamma: [K], what the producer stores before smoothing if that is a norm's γ in bfloat16
            (ones after rotation); the result then makes ``gamma / s`` exact in bfloat16. None for
            a producer that is a matrix.

    Raises:
        ValueError: no tokens, or no quantised consumer.
    """
    known, kept = halves(inputs)
    trial = Trial(kept, consumers, gamma)
    size = known.abs().amax(0).double().clamp_min(_TINY)
    weights = torch.stack([c.weight.abs().amax(0) for c in trial.readers]).amax(0)
    largest = weights.double().clamp_min(_TINY)
    steps = [i / _STEPS for i in range(_STEPS + 1)]
    errors = [trial.offer(size**a / largest ** (1 - a)) for a in steps]
    best = steps[errors.index(min(errors))]
    for b in steps:
        trial.offer(size**best / largest**b)
    return trial.result()


def awq_search(
    inputs: Tensor, consumers: Sequence[Consumer], *, gamma: Tensor | None = None
) -> Smoothing:
    """Search ``mean|x|^a`` over a; arguments, result and errors of :func:`smooth_search`."""
    known, kept = halves(inputs)
    trial = Trial(kept, consumers, gamma)
    size = known.abs().double().mean(0).clamp_min(_TINY)
    for step in range(1, _STEPS + 1):
        trial.offer(size ** (step / _STEPS))
    return trial.result()


def pivot_search(
    inputs: Tensor,
    consumers: Sequence[Consumer],
    factor: Factor,
    *,
    gamma: Tensor | None = None,
) -> Smoothing:
    """Search ``(√D / rms w)^a`` for readers that are rounded by GPTQ, and round them so.

    Args:
        inputs, consumers, gamma: as for :func:`smooth_search`.
        factor: of the Hessian of the activation (all calibration tokens, not only the sample).

    Raises:
        ValueError: as for :func:`smooth_search`.
    """
    trial = Trial(inputs, consumers, gamma, _sequential(factor))
    pivots = factor.importance()
    power = torch.stack([c.weight.square().mean(0) for c in trial.readers]).mean(0)
    ratio = pivots.double().sqrt() / power.double().sqrt().clamp_min(_TINY)
    for step in range(1, _PIVOT_STEPS + 1):
        trial.offer(ratio ** (0.5 * step / _PIVOT_STEPS))
    return trial.result()


def output_error(
    inputs: Tensor, consumers: Sequence[Consumer], vector: Tensor, rounder: Rounder | None = None
) -> float:
    """Relative squared error of the stored layer: over tokens, then over quantised consumers, the
    mean of ``|y - ŷ|² / (|y|² + mean |y|² / 10)``.

    Args:
        inputs: [T, K] float32.
        consumers: readers; those that stay float are left out.
        vector: [K], what the activation is divided by.
        rounder: ``(weight with its vector, vector, grid) -> dequantised weight``; None rounds to
            nearest with the best scale of each row.
    """
    smooth = vector.float()
    codes, scale = dynamic_quant(inputs / smooth)
    seen = codes.float() * scale
    errors = []
    for consumer in consumers:
        if consumer.grid is None:
            continue
        stored = (rounder or _nearest)(consumer.weight * smooth, smooth, consumer.grid)
        wanted = inputs @ consumer.weight.T
        size = wanted.double().square().sum(1)
        difference = (seen @ stored.T - wanted).double().square().sum(1)
        errors.append(float((difference / (size + _FLOOR * size.mean() + _TINY)).mean()))
    return sum(errors) / len(errors)


def halves(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Rows for candidates and rows to measure them on; one row is both."""
    return (inputs[::2], inputs[1::2]) if len(inputs) > 1 else (inputs, inputs)


def _nearest(weight: Tensor, vector: Tensor, grid: Grid) -> Tensor:
    scale = weighted_scale(weight, None, grid)
    return grid.codes(weight, scale) * scale


def _sequential(factor: Factor) -> Rounder:
    """GPTQ with the factor of the divided activation: ``S⁻¹ (I + U) D (I + U)ᵀ S⁻¹`` keeps the
    form, with ``U_ij s_j / s_i`` and ``D_j / s_j²``, so nothing is factorised again."""

    def codes_of(weight: Tensor, vector: Tensor, grid: Grid) -> Tensor:
        ordered = vector[factor.order]
        turned = Factor(
            factor.feedback * ordered / ordered.unsqueeze(1),
            factor.pivots / ordered.square(),
            factor.order,
            factor.damping,
        )
        found = gptq(weight, turned, grid)
        return found.codes.float() * found.scale

    return codes_of


class Trial:
    """Measures candidates and keeps the best; ones are measured first."""

    def __init__(
        self,
        inputs: Tensor,
        consumers: Sequence[Consumer],
        gamma: Tensor | None,
        rounder: Rounder | None = None,
    ) -> None:
        self.readers = [c for c in consumers if c.grid is not None]
        if not self.readers or not inputs.shape[0]:
            raise ValueError("a search needs tokens and a quantised reader")
        self._inputs, self._gamma, self._rounder = inputs, gamma, rounder
        self._vector = torch.ones(inputs.shape[1], dtype=torch.float64)
        self._error = output_error(inputs, self.readers, self._vector, rounder)
        self._plain = self._error

    def offer(self, vector: Tensor) -> float:
        """Measure ``vector`` divided by its geometric mean, as it will be applied."""
        candidate = snapped(normalised(vector), self._gamma)
        error = output_error(self._inputs, self.readers, candidate, self._rounder)
        if error < self._error:
            self._vector, self._error = candidate, error
        return error

    def result(self) -> Smoothing:
        return Smoothing(self._vector, self._error, self._plain)


def normalised(vector: Tensor) -> Tensor:
    """``vector`` over its geometric mean: the scale of the whole belongs to no channel."""
    return vector / vector.log().mean().exp()


def snapped(vector: Tensor, gamma: Tensor | None) -> Tensor:
    """Nearest float64 vector [K] for which ``gamma / vector`` is exact in bfloat16."""
    if gamma is None:
        return vector.double()
    exact = gamma.double()
    stored = to_bfloat16(exact / vector.double())
    return torch.where(stored != 0, exact / stored, torch.ones_like(exact))
