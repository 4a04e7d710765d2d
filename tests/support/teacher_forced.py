"""Teacher-forced comparison of an engine's log-probabilities with an oracle's logits."""

from __future__ import annotations

import torch


def step_errors(logprobs: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return [T]: max error of each step, relative to the standard deviation of the logits.

    Log-probabilities are logits minus a constant per step, so both are centred per step over the
    same tokens first. Tokens that the engine did not report are NaN in ``logprobs`` [T, vocab]; at
    least two per step are needed. The standard deviation is that of all centred oracle logits.
    """
    if logprobs.shape != logits.shape:
        raise ValueError(f"shapes {tuple(logprobs.shape)} and {tuple(logits.shape)} differ")
    known = ~logprobs.isnan()
    if int(known.sum(dim=1).min()) < 2:
        raise ValueError("a step has fewer than two log-probabilities")
    if logprobs[known].isinf().any():
        raise ValueError("the engine returned an infinite log-probability")
    engine = _centred(logprobs.double(), known)
    oracle = _centred(logits.double(), known)
    spread = (logits.double() - logits.double().mean(dim=1, keepdim=True)).std()
    return (engine - oracle).abs().amax(dim=1) / spread


def teacher_forced_error(logprobs: torch.Tensor, logits: torch.Tensor) -> float:
    """Return the worst of :func:`step_errors`."""
    return float(step_errors(logprobs, logits).max())


def _centred(values: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    filled = torch.where(known, values, 0.0)
    mean = filled.sum(dim=1, keepdim=True) / known.sum(dim=1, keepdim=True)
    return torch.where(known, values - mean, 0.0)
