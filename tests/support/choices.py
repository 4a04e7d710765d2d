"""Discrete choices of a forward pass: keys picked by indexers, experts picked by routers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


@dataclass
class Choices:
    """Choices by layer index; row t belongs to position t.

    ``topk_indices``: int32 [T, index_topk], ascending positions, padded with -1; only layers that
    own an indexer. ``expert_ids``: int32 [T, top_k], ascending; MoE layers only. ``codes``: by
    module name, the int8 activation codes [T, K] of quantised linears and ``mlp.experts.gate_up``,
    and [T, top_k, K] of ``mlp.experts.down`` in the order of ``expert_ids``; recorded on demand.
    """

    topk_indices: dict[int, torch.Tensor] = field(default_factory=dict)
    expert_ids: dict[int, torch.Tensor] = field(default_factory=dict)
    codes: dict[str, torch.Tensor] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the injection file that the simulator reads."""
        tensors = {f"layers.{i}.topk_indices": t for i, t in self.topk_indices.items()}
        tensors |= {f"layers.{i}.expert_ids": t for i, t in self.expert_ids.items()}
        tensors |= {f"{module}.codes": t for module, t in self.codes.items()}
        save_file({name: t.contiguous() for name, t in tensors.items()}, path)

    @classmethod
    def load(cls, path: Path) -> Choices:
        """Read a file written by :meth:`save`."""
        choices = cls()
        for name, tensor in load_file(path).items():
            owner, _, kind = name.rpartition(".")
            key = owner if kind == "codes" else int(owner.removeprefix("layers."))
            getattr(choices, kind)[key] = tensor
        return choices

    def rows(self, start: int, stop: int) -> Choices:
        """Return the choices of positions start..stop-1."""
        return Choices(
            {i: t[start:stop] for i, t in self.topk_indices.items()},
            {i: t[start:stop] for i, t in self.expert_ids.items()},
            {n: t[start:stop] for n, t in self.codes.items()},
        )

    def merged(self, other: Choices) -> Choices:
        """Return the choices of both (main model and MTP layer); those of ``other`` win."""
        return Choices(
            self.topk_indices | other.topk_indices,
            self.expert_ids | other.expert_ids,
            self.codes | other.codes,
        )


@dataclass
class Forward:
    """``logits`` [T, vocab], ``hidden`` [T, hidden] after the final norm, and the choices made."""

    logits: torch.Tensor
    hidden: torch.Tensor
    choices: Choices


def sorted_indices(selected: torch.Tensor, start: int, width: int) -> torch.Tensor:
    """Return transformers' unordered selection as ascending, -1 padded rows.

    ``selected`` is [S, k] with row s at position ``start + s``. Keys beyond that position fill up
    short rows in transformers and are masked later; they are no selection and are dropped here.
    """
    positions = torch.arange(start, start + selected.shape[0]).unsqueeze(1)
    beyond = torch.iinfo(torch.int32).max
    kept = torch.where(selected <= positions, selected.to(torch.int32), beyond)
    kept = kept.sort(dim=-1).values
    rows = torch.full((selected.shape[0], width), -1, dtype=torch.int32)
    rows[:, : kept.shape[1]] = torch.where(kept == beyond, -1, kept)
    return rows


def fill_padding(rows: torch.Tensor) -> torch.Tensor:
    """Replace -1 by the row's first index: a duplicate, which transformers' scatter ignores."""
    return torch.where(rows < 0, rows[:, :1], rows)


def recall(wanted: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Return per row the share of indices of ``wanted`` (>= 0) that ``found`` holds too."""
    present = (wanted.unsqueeze(2) == found.unsqueeze(1)).any(dim=2) & (wanted >= 0)
    return present.sum(dim=1) / (wanted >= 0).sum(dim=1)
