"""The orthogonal matrix between the hidden states of a checkpoint and of its source.

Every rotating tool turns the embedding with the same matrix as the residual stream, so that matrix
is found from the two embeddings, whoever made them: R = U Vᵀ of the singular value decomposition of
E_sourceᵀ E_rotated is the orthogonal matrix of the smallest ‖E_source R - E_rotated‖ (Schönemann
1966).
"""

from __future__ import annotations

import torch
from torch import Tensor

# More rows than this many times the hidden size say nothing new.
_ROWS = 4
# Of squared error over squared size; BF16 and scaled rotations stay far below.
_LIMIT = 0.01


def find_basis(source: Tensor, rotated: Tensor) -> Tensor | None:
    """Orthogonal R, F32 [H, H], with source · R ≈ rotated; None if there is none.

    Args:
        source, rotated: embeddings [vocabulary, H] in any float dtype.
    """
    hidden = source.shape[1]
    step = max(1, source.shape[0] // (_ROWS * hidden))
    a, b = source[::step].float(), rotated[::step].float()
    if _error(a, b) < _LIMIT:
        return torch.eye(hidden)
    left, _, right = torch.linalg.svd(a.T @ b)
    basis: Tensor = left @ right
    return basis if _error(a @ basis, b) < _LIMIT else None


def relative_error(reference: Tensor, variant: Tensor, basis: Tensor | None) -> float | None:
    """Σ(variant - reference · R)² / Σ reference² of hidden states [N, H]; None without a basis."""
    return None if basis is None else _error(reference @ basis, variant)


def _error(wanted: Tensor, found: Tensor) -> float:
    size = float(wanted.square().sum(dtype=torch.float64))
    error = float((found - wanted).square().sum(dtype=torch.float64))
    return error / size if size else float(error > 0)
