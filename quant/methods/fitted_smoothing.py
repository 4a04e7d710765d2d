"""A smoothing vector that is fitted to the activations, instead of taken from a family.

Dividing an activation by ``s`` and multiplying the reader's columns by it, the error of a token is

    ``A · (m_t² / (12 · 127²) + κ / K · Σ_c x_tc² / s_c²)``,  ``A = Σ_c s_c² |w_c|²``,

with ``m_t = max_c |x_tc| / s_c``: the first term is the rounding of the activation, whose step is
``m_t / 127`` in every channel; the second that of the weights, whose squared step in a row of mean
square ``r²`` is ``12 κ r²``. Its mean over tokens, each divided by its output's square, is lowered
by moving every ``log s_c`` along the normalised slope: a channel that holds more of the second
factor than of ``A`` is divided by more. There is no product with a matrix, so a step costs one pass
over the sample.

Outliers that stay in one channel are what SmoothQuant (2022) removes; where they wander, as in the
gated activation of a trained dense block, only the frequencies of the largest channels say what to
do, and the fit uses them. It is made from half of the rows, its power measured on the others with
what the NPU computes, and then made from all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from glm5_ascend.quant.methods.grid import INT4, Grid
from glm5_ascend.quant.methods.smoothing import Consumer, Smoothing, Trial, halves, normalised

POWERS = (0.25, 0.5, 0.75, 1.0)
_ROUNDS = 60
_FIRST_STEP = 0.15
# Squared error of a weight over its row's mean square, when GPTQ halves what rounding leaves.
_INT4_ERROR, _INT8_ERROR = 4e-3, 3e-5
_LEVELS = 127.0
_TINY = 2.0**-60
_FLOOR = 0.1


def fitted_search(inputs: Tensor, consumers: Sequence[Consumer]) -> Smoothing:
    """Fit a vector and choose its power, with none among the candidates.

    Args:
        inputs: sample of the activation [T, K], float32; some thousand rows, because what the fit
            learns from few does not hold for other tokens.
        consumers: all matrices that read it; the producer must be a matrix.

    Returns:
        The vector from all rows at the power that was best on the rows kept back; ``error`` and
        ``plain`` are those of the vector from the others.

    Raises:
        ValueError: no tokens, or no quantised consumer.
    """
    known, kept = halves(inputs)
    trial = Trial(kept, consumers, None)
    part = fitted_vector(known, trial.readers)
    errors = {power: trial.offer(part**power) for power in POWERS}
    found = trial.result()
    best = min(errors, key=lambda power: errors[power])
    if errors[best] >= found.plain:
        return found
    whole = fitted_vector(inputs, trial.readers)
    return Smoothing(normalised(whole**best), found.error, found.plain)


def fitted_vector(inputs: Tensor, readers: Sequence[Consumer]) -> Tensor:
    """The vector of the smallest modelled error, float64 [K], geometric mean 1.

    Args:
        inputs: [T, K] float32.
        readers: quantised matrices that read them.
    """
    size = inputs.abs()
    squares = sum((reader.weight.double().square().sum(0) for reader in readers), torch.zeros(1))
    share = _token_weights(inputs, readers)
    power = (size.square().double() * share.unsqueeze(1)).sum(0)
    kappa = max(_error_of(reader.grid) for reader in readers) / inputs.shape[1]
    log = 0.5 * power.clamp_min(_TINY).sqrt().log()
    log -= log.mean()
    best, lowest = log.clone(), torch.inf
    for number in range(_ROUNDS + 1):
        vector = log.exp()
        largest, where = (size / vector.float()).max(1)
        rounding = share * largest.double().square() / (12 * _LEVELS**2)
        load = torch.zeros_like(log).index_add_(0, where, rounding)
        load += kappa * power / vector.square()
        spent = squares * vector.square()
        error = float(load.sum() * spent.sum())
        if error < lowest:
            best, lowest = log.clone(), error
        left, right = spent / spent.sum(), load / load.sum()
        step = _FIRST_STEP * (1 - number / (_ROUNDS + 1))
        log = log - step * (left - right) / (left + right + _TINY)
        log -= log.mean()
    return best.exp()


def _error_of(grid: Grid | None) -> float:
    return _INT4_ERROR if grid is INT4 else _INT8_ERROR


def _token_weights(inputs: Tensor, readers: Sequence[Consumer]) -> Tensor:
    """One over the square of each token's output, float64 [T]; small tokens do not decide."""
    output = torch.zeros(len(inputs), dtype=torch.float64)
    for reader in readers:
        output += (inputs @ reader.weight.T).double().square().sum(1)
    return 1.0 / (output + _FLOOR * output.mean() + _TINY)
