"""Hooks that record or replace the choices of transformers' indexers and routers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.support.choices import Choices, fill_padding, sorted_indices
from tests.support.ties import Ties, index_scores

TIE_WINDOW = 0.01


class Probe:
    """Records choices of hooked layers into ``seen``; replaces them by ``inject`` where it has any.

    With ``ties``, only those that these judge to be ties are replaced. ``start`` is the position of
    the first row of the running forward pass. ``record_codes`` makes quantised modules record their
    activation codes as well.
    """

    def __init__(self, index_topk: int) -> None:
        self.index_topk = index_topk
        self.record_codes = False
        self.start = 0
        self.seen = Choices()
        self.inject: Choices | None = None
        self.ties: Ties | None = None

    def begin(self, start: int, inject: Choices | None, ties: Ties | None = None) -> None:
        """Reset before a forward pass whose first row is at position ``start``."""
        self.start, self.inject, self.ties, self.seen = start, inject, ties, Choices()

    def attach(self, layer: nn.Module, index: int) -> None:
        """Hook the indexer and the router of a decoder layer known as ``index``."""
        indexer = getattr(layer.self_attn, "indexer", None)
        if isinstance(indexer, nn.Module):
            indexer.register_forward_hook(
                lambda m, a, kw, out: self._index(index, m, a, kw, out), with_kwargs=True
            )
        gate = getattr(layer.mlp, "gate", None)
        if isinstance(gate, nn.Module):
            gate.register_forward_hook(lambda m, _a, out: self._route(index, m, out))

    def settle(self, module: str, scaled: torch.Tensor) -> torch.Tensor:
        """Round activations in units of their step to codes, near-ties as the injected codes say.

        ``scaled`` is F32 [S, K] or [S, top_k, K]. An injected code is used where it is a rounding
        of the value up to :data:`TIE_WINDOW` steps: it decides ties that F32 noise would decide
        otherwise, and cannot hide an error larger than that.
        """
        codes = torch.round(scaled)
        wanted = self.inject.codes.get(module) if self.inject else None
        if wanted is not None:
            chosen = wanted[self.start : self.start + len(scaled)].to(torch.float32)
            if self.ties is not None:
                near = self.ties.codes(module, scaled, chosen)
            else:
                near = (scaled - chosen).abs() <= 0.5 + TIE_WINDOW
            codes = torch.where(near, chosen, codes)
        if self.record_codes:
            self.seen.codes[module] = codes.clamp(-128, 127).to(torch.int8)
        return codes

    def _index(
        self, layer: int, indexer: Any, args: Any, kwargs: Any, selected: torch.Tensor
    ) -> torch.Tensor | None:
        rows = sorted_indices(selected[0], self.start, self.index_topk)
        self.seen.topk_indices[layer] = rows
        wanted = self.inject.topk_indices.get(layer) if self.inject else None
        if wanted is None:
            return None
        chosen = wanted[self.start : self.start + len(rows)]
        if self.ties is not None:
            scores = index_scores(indexer, *args, **kwargs)
            near = self.ties.choice("key", layer, scores, rows, chosen)
            chosen = torch.where(near.unsqueeze(1), chosen, rows)
        self.seen.topk_indices[layer] = chosen
        return fill_padding(chosen).unsqueeze(0)

    def _route(self, layer: int, gate: Any, output: tuple[torch.Tensor, ...]) -> Any:
        logits, _, ids = output
        own = ids.sort(dim=-1).values.to(torch.int32)
        self.seen.expert_ids[layer] = own
        wanted = self.inject.expert_ids.get(layer) if self.inject else None
        if wanted is None:
            return None
        chosen = wanted[self.start : self.start + len(ids)]
        if self.ties is not None:
            scores = logits.sigmoid() + gate.e_score_correction_bias
            near = self.ties.choice("expert", layer, scores, own, chosen)
            chosen = torch.where(near.unsqueeze(1), chosen, own)
        self.seen.expert_ids[layer] = chosen.to(torch.int32)
        weights = logits.sigmoid().gather(1, chosen.long())
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return logits, weights * gate.routed_scaling_factor, chosen.long()
