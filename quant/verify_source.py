"""Compare a quantised checkpoint with the one it was made from, matrix by matrix.

What is compared is ``W · diag(γ)``: the matrix with the norm in front of it, wherever the quantiser
put that norm's weights. Rotations are orthogonal, so the error in the stored basis is the error
after un-rotation. Smoothing between two matrices (value rows against ``o_proj``, ``up_proj``
against ``down_proj``) is taken out by a fit of one factor per row or column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.ascend_schemes import FLOAT, ROTATION, W4A8_DYNAMIC
from glm5_ascend.checkpoint import CheckpointReader, expected_tensors
from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.convert import read_matrix
from glm5_ascend.quant.folding import Fold, fold_of, layer_of
from glm5_ascend.quant.refinement import REFINEMENTS, refined_rotations
from glm5_ascend.quant.rotation import (
    Orthogonal,
    in_layer,
    on_columns,
    on_rows,
    recycled_state,
)
from glm5_ascend.quant.verify_values import Values, read_codes
from glm5_ascend.verify.findings import Condition

# Squared error over squared size. Gaussian rows give 1.2e-2 in int4 and 7.5e-5 in int8; the limits
# leave room for outliers without rotation, and for GPTQ, which trades weight for output error.
LIMITS = {W4A8_DYNAMIC: 0.25, FLOAT: 1e-3}
_INT8_LIMIT = 0.02
_UNLIKE = 0.5
_SAMPLE_ROWS = 64
_CHUNK = 1 << 24
_BY_COLUMN = (".o_proj.weight", ".down_proj.weight")
_BY_ROW = (".up_proj.weight", ".kv_b_proj.weight")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Source, configuration, and the rotations that the checkpoint was found to have."""

    reader: CheckpointReader
    config: Glm5Config
    values: Values
    schemes: Mapping[str, str | None]
    matrices: Mapping[str, Orthogonal]

    @classmethod
    def start(
        cls,
        reader: CheckpointReader,
        config: Glm5Config,
        values: Values,
        schemes: Mapping[str, str | None],
    ) -> Comparison | None:
        """Find out whether the checkpoint is rotated; None if its embedding is of another model.

        Raises:
            CheckpointError: a tensor of the source has not the shape that ``config`` gives.
        """
        name = "model.embed_tokens.weight"
        if name not in values or values.folder.spec(name).shape != reader.spec(name).shape:
            return None
        for tensor, spec in expected_tensors(config).items():
            if tensor in reader and reader.spec(tensor).shape != spec.shape:
                raise CheckpointError(
                    f"the source holds {tensor} of shape {list(reader.spec(tensor).shape)}, the "
                    f"checkpoint's config.json says {list(spec.shape)}",
                    "give the checkpoint that this one was made from",
                )
        rows = slice(0, _SAMPLE_ROWS)
        plain = read_matrix(reader, name, rows)
        stored = values.tensor(name)[rows].double()
        if _error(stored, plain, fit=None) < _UNLIKE:
            return cls(reader, config, values, schemes, {})
        file = values.folder.directory / REFINEMENTS
        try:
            matrices = refined_rotations(config, file if file.is_file() else None)
        except ValueError:
            return None
        axis = fold_of(config, name).columns
        if axis is None or _error(stored, on_columns(plain, axis, matrices), None) >= _UNLIKE:
            return None
        return cls(reader, config, values, schemes, matrices)

    def relative_error(self, name: str) -> float | None:
        """Σ(stored - source)² / Σ source² of a matrix; None for what has no single source."""
        spec = self.values.folder.spec(name)
        if name == ROTATION:
            gamma = read_matrix(self.reader, "model.norm.weight")
            wanted = recycled_state(gamma, self.matrices["R1"]) if self.matrices else None
            return None if wanted is None else _error(self.values.tensor(name).double(), wanted)
        source = source_name(self.config, name)
        if source not in self.reader:
            return None
        if len(spec.shape) != 2:
            if name.endswith("norm.weight") and not name.endswith(".k_norm.weight"):
                return None
            return _error(self.values.tensor(name).double(), read_matrix(self.reader, source), None)
        fold = fold_of(self.config, name) if _has_fold(name) else Fold()
        pieces = self._pieces(name, source, fold)
        return None if pieces is None else _total(pieces, _fit_of(name))

    def judge(self, name: str, error: float) -> Condition | None:
        """The condition of an error above its limit."""
        scheme = self.schemes.get(name, FLOAT)
        limit = LIMITS.get(scheme or FLOAT, _INT8_LIMIT)
        if error <= limit:
            return None
        rule = "rotation-value" if name == ROTATION else "source-error"
        return Condition(rule, name, f"has a relative squared error of {error:.2e}")

    def _pieces(self, name: str, source: str, fold: Fold) -> Iterator[tuple[Tensor, Tensor]] | None:
        """Pairs of stored and wanted rows, both times their norms."""
        stored = self._stored(name)
        if stored is None:
            return None
        before = [read_matrix(self.reader, norm) for norm in fold.norms]
        after = [self.values.tensor(norm).double() for norm in fold.norms if norm in self.values]
        has_norms = bool(before) and len(after) == len(before)
        return self._rows(source, fold, stored, (before, after) if has_norms else ([], []))

    def _rows(
        self, source: str, fold: Fold, stored: Tensor, norms: tuple[list[Tensor], list[Tensor]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        rows, width = stored.shape
        matrices = in_layer(self.matrices, layer_of(source))
        whole = fold.rows is not None and bool(self.matrices)
        step = rows if whole else max(1, _CHUNK // width)
        before, after = norms
        for start in range(0, rows, step):
            part = slice(start, min(start + step, rows))
            wanted = read_matrix(self.reader, source, part)
            if before:
                wanted = wanted * torch.cat(before)
            if matrices and fold.columns is not None:
                wanted = on_columns(wanted, fold.columns, matrices)
            if whole and fold.rows is not None:
                wanted = on_rows(wanted, fold.rows, matrices)
            found = stored[part].double()
            yield found * torch.cat(after) if after else found, wanted

    def _stored(self, name: str) -> Tensor | None:
        scheme = self.schemes.get(name)
        if scheme is None:
            return None
        if scheme == FLOAT:
            return self.values.tensor(name)
        pair = read_codes(self.values, name, scheme)
        return None if pair is None else pair.dequantised()


def source_name(config: Glm5Config, name: str) -> str:
    """The source tensor of a stored one; the MTP layer's vocabulary matrices are the main ones."""
    prefix = f"model.layers.{config.num_hidden_layers}."
    if name == f"{prefix}embed_tokens.weight":
        return "model.embed_tokens.weight"
    return "lm_head.weight" if name == f"{prefix}shared_head.head.weight" else name


def _has_fold(name: str) -> bool:
    return name.endswith(".weight") and not name.endswith("norm.weight")


def _fit_of(name: str) -> str | None:
    if name.endswith(_BY_COLUMN):
        return "columns"
    return "rows" if name.endswith(_BY_ROW) else None


def _total(pieces: Iterator[tuple[Tensor, Tensor]], fit: str | None) -> float:
    error = size = 0.0
    for stored, wanted in pieces:
        size += float(wanted.square().sum())
        error += _error(stored, wanted, fit) * float(wanted.square().sum())
    return error / size if size else 0.0


def _error(stored: Tensor, wanted: Tensor, fit: str | None = None) -> float:
    """Relative squared error; with ``fit`` the smaller of it and that after one factor per line."""
    size = float(wanted.square().sum())
    if size == 0.0:
        return float(stored.square().sum() > 0)
    error = float((stored - wanted).square().sum())
    if fit is not None:
        axis = 0 if fit == "columns" else 1
        norm = wanted.square().sum(axis, keepdim=True).clamp_min(1e-300)
        factor = (stored * wanted).sum(axis, keepdim=True) / norm
        is_usable = factor > 0
        scaled = torch.where(is_usable, stored / factor.clamp_min(1e-300), stored)
        error = min(error, float((scaled - wanted).square().sum()))
    return error / size
