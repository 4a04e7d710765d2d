"""Second moments of a linear layer's inputs, and their factor for sequential rounding.

For rows ``w`` of a weight and inputs ``x`` (as the engine sees them, so after its activation
quantisation) the squared output error of ``ŵ`` over all tokens is ``(w - ŵ) H (w - ŵ)ᵀ`` with
``H = Σ x xᵀ``. Sequential rounding with feedback needs the factorisation
``H + λI = (I + U) D (I + U)ᵀ``, ``U`` strictly upper: Chee et al., "QuIP: 2-Bit Quantization of
Large Language Models With Guarantees" (2023), section 3, who also show that the feedback by ``U``
is that of Frantar et al., "GPTQ" (2022), which obtains it from the inverse of ``H``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Order = Literal["natural", "activation"]

# Columns of one product of `accumulate`: half of H is computed, in panels of this width.
_PANEL = 768
# Order of the blocks that a large matrix is factorised by; smaller ones are not worth blocks.
_BLOCK = 512
# Rounding of float32, relative to the largest eigenvalue, that may disturb the damping.
_DISTURBANCE = 0.02


def accumulate(hessian: Tensor, inputs: Tensor, weights: Tensor | None = None) -> None:
    """Add ``Σ_t weights_t · x_t x_tᵀ`` to the upper triangle of ``hessian``, in place.

    Args:
        hessian: [K, K] float32 or float64; finish it with :func:`symmetric`.
        inputs: [T, K], converted to the dtype of ``hessian``.
        weights: [T] not negative, or None for ones; for example squared router weights, whose
            expert outputs enter the layer's output multiplied by them (Chen et al., "MoEQuant",
            2025).
    """
    left = inputs.to(hessian.dtype)
    right = left if weights is None else left * weights.to(hessian.dtype).unsqueeze(1)
    size = hessian.shape[0]
    for start in range(0, size, _PANEL):
        stop = min(start + _PANEL, size)
        hessian[:stop, start:stop].addmm_(left[:, :stop].T, right[:, start:stop])


def symmetric(hessian: Tensor) -> Tensor:
    """Copy the upper triangle over the lower one, in place, and return ``hessian``."""
    size = hessian.shape[0]
    for start in range(0, size, _PANEL):
        stop = min(start + _PANEL, size)
        hessian[start:stop, :start] = hessian[:start, start:stop].T
        block = hessian[start:stop, start:stop]
        block.copy_(block.triu() + block.triu(1).T)
    return hessian


@dataclass(frozen=True, slots=True)
class Factor:
    """``(I + U) D (I + U)ᵀ`` of a damped Hessian whose columns were put into ``order``.

    Attributes:
        feedback: ``I + U``, float32 [K, K], upper triangular with unit diagonal.
        pivots: the diagonal of ``D``, float32 [K], positive.
        order: int64 [K]; entry j is the column that is rounded j-th.
        damping: what was added to the diagonal.
    """

    feedback: Tensor
    pivots: Tensor
    order: Tensor
    damping: float

    def hessian(self) -> Tensor:
        """The damped Hessian, float32 [K, K], in the order of the weight's columns."""
        root = self.feedback * self.pivots.sqrt()
        back = torch.argsort(self.order)
        return (root @ root.T)[back].index_select(1, back)

    def importance(self) -> Tensor:
        """The pivots in the order of the weight's columns: how much the error of one counts."""
        result = torch.empty_like(self.pivots)
        result[self.order] = self.pivots
        return result


def factorise(hessian: Tensor, *, damp: float = 0.01, order: Order = "activation") -> Factor | None:
    """Factorise ``hessian`` for rounding; every matrix that reads the same input may share it.

    Args:
        hessian: [K, K] symmetric, float32 or float64; not changed.
        damp: λ as a share of the mean of the diagonal (GPTQ's 1 %).
        order: "activation" rounds columns of large input first, as GPTQ's option does, so that
            more columns are left to make up for their error.

    Returns:
        None if there is nothing to learn from ``hessian``: no tokens (zeros), NaN or infinity, or
        not positive definite even with the damping.
    """
    diagonal = hessian.diagonal().double()
    mean = float(diagonal.mean())
    if not (mean > 0.0 and bool(torch.isfinite(hessian).all())):
        return None
    size = hessian.shape[0]
    chosen = torch.arange(size)
    if order == "activation":
        chosen = torch.argsort(diagonal, descending=True, stable=True)
    damping = damp * mean
    # A Cholesky factor of the reversed matrix, reversed again, is upper triangular.
    backwards = chosen.flip(0)
    work = hessian[backwards].index_select(1, backwards)
    lower = _cholesky(work, damping)
    del work
    if lower is None:
        return None
    upper = lower.flip(0, 1)
    root = upper.diagonal().clone()
    upper /= root
    return Factor(upper.float(), root.double().square().float(), chosen, damping)


def _cholesky(matrix: Tensor, damping: float) -> Tensor | None:
    """Lower Cholesky factor of ``matrix + damping · I``; the matrix is overwritten.

    float64, except for a large float32 matrix whose rounding stays far below the damping: there
    the products are float32 and only the blocks on the diagonal float64.
    """
    size = matrix.shape[0]
    # The largest absolute sum of a row bounds the largest eigenvalue.
    rounding = torch.finfo(torch.float32).eps * float(matrix.abs().sum(1).max())
    if matrix.dtype is not torch.float32 or size <= 2 * _BLOCK or rounding > _DISTURBANCE * damping:
        exact = matrix.double()
        exact.diagonal().add_(damping)
        lower, failed = torch.linalg.cholesky_ex(exact)
        return None if int(failed) else lower
    matrix.diagonal().add_(damping)
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        block, failed = torch.linalg.cholesky_ex(matrix[start:end, start:end].double())
        if int(failed):
            return None
        matrix[start:end, start:end] = block
        identity = torch.eye(end - start, dtype=torch.float64)
        inverse = torch.linalg.solve_triangular(block, identity, upper=False).float()
        below = matrix[end:, start:end] @ inverse.T
        matrix[end:, start:end] = below
        for column in range(end, size, _PANEL):
            stop = min(column + _PANEL, size)
            part = below[column - end : stop - end]
            matrix[column:, column:stop].addmm_(below[column - end :], part.T, alpha=-1)
    return matrix.tril_()
