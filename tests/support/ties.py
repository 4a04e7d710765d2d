"""Near-ties in which a reference follows the implementation under test, and nothing else.

A quantised model takes thousands of decisions per token: int8 codes, keys, experts. Where two
outcomes lie within F32 noise of each other, two exact implementations may differ, and from there on
everything rounds anew: a single flipped code moves the logits by about 1e-2 of their deviation. So
a reference in F64 is given the other side's decisions. It adopts one only if its own values, along
the path taken so far, put it within a window of the tie; any other stays its own, shows up as an
error of the logits, and is reported as refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

# Largest margins of ties: codes in steps of the quantiser, keys in units of `index_scores`, experts
# as a difference of sigmoids. Measured on the small model as W4A8, 770 positions, transformers in
# F32 and in F64 along one path: values differ by up to 5e-4, 1.4e-6 and 4.7e-7 (on average by 4e-6,
# 9e-8 and 4e-8; 2^-24 of the largest code is 8e-6 steps), so two scores by twice that. The median
# gap at the border of a choice is 3e-3 for keys and 3e-2 for experts.
WINDOWS = {"code": 1e-3, "key": 5e-6, "expert": 2e-6}


@dataclass(frozen=True)
class Tie:
    """A decision that the reference alone would have taken otherwise.

    ``where`` is a module or ``layers.{i}``, ``place`` the position and, for codes, the element's
    other indices; ``margin`` is in the units of :data:`WINDOWS`.
    """

    kind: str
    where: str
    place: tuple[int, ...]
    margin: float
    adopted: bool

    @property
    def row(self) -> int:
        """The position."""
        return self.place[0]

    def __str__(self) -> str:
        return f"{self.kind} of {self.where} at position {self.row}, margin {self.margin:.1e}"


class Ties:
    """Judges the decisions of one forward pass and keeps those that differ, in order."""

    def __init__(self, windows: Mapping[str, float] = WINDOWS) -> None:
        self.windows = windows
        self.found: list[Tie] = []

    @property
    def refused(self) -> list[Tie]:
        """Decisions that are no ties, the earliest position first, in order of computation."""
        return sorted((t for t in self.found if not t.adopted), key=lambda tie: tie.row)

    @property
    def adopted(self) -> list[Tie]:
        """Ties; modules that quantise the same input share theirs, so each counts once."""
        once = {(t.kind, t.place, t.margin): t for t in self.found if t.adopted}
        return list(once.values())

    def codes(self, module: str, scaled: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return where ``wanted`` rounds ``scaled`` (both [S, .., K], in steps) but for a tie."""
        beyond = (scaled - wanted).abs() - 0.5
        near = beyond <= self.windows["code"]
        for indices in (torch.round(scaled) != wanted).nonzero().tolist():
            place = tuple(indices)
            self._add("code", module, place, float(beyond[place]), bool(near[place]))
        return near

    def choice(
        self,
        kind: str,
        layer: int,
        scores: torch.Tensor,
        own: torch.Tensor,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """Return bool [S]: rows of ``wanted`` that equal ``own`` but for ties of ``scores``.

        ``scores`` [S, N] are in the units of the window; ``own`` and ``wanted`` hold indices < N,
        -1 for none. The margin of a row is that between the best one left out and the worst one
        taken instead; a choice of another size has none.
        """
        ours, theirs = (members(rows, scores.shape[1]) for rows in (own, wanted))
        inf = float("inf")
        lost = scores.masked_fill(~(ours & ~theirs), -inf).amax(dim=1)
        taken = scores.masked_fill(~(theirs & ~ours), inf).amin(dim=1)
        margin = (lost - taken).masked_fill(ours.sum(dim=1) != theirs.sum(dim=1), inf)
        differs = (ours != theirs).any(dim=1)
        near = ~differs | (margin <= self.windows[kind])
        for row in differs.nonzero().flatten().tolist():
            self._add(kind, f"layers.{layer}", (row,), float(margin[row]), bool(near[row]))
        return near

    def _add(
        self, kind: str, where: str, place: tuple[int, ...], margin: float, adopted: bool
    ) -> None:
        self.found.append(Tie(kind, where, place, margin, adopted))


def members(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return bool [S, count]: what ``rows`` [S, k] hold; -1 is nothing."""
    held = torch.zeros(len(rows), count + 1, dtype=torch.bool)
    held.scatter_(1, torch.where(rows < 0, count, rows).long(), True)
    return held[:, :count]


def index_scores(indexer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return Σ_h w_h · ReLU(q_h·k) [T, T] over the row's largest Σ_h |w_h| · ReLU(q_h·k).

    Arguments are those of transformers' indexer for one sequence from position 0; -inf above the
    diagonal.
    """
    given = inspect.signature(indexer.forward).bind(*args, **kwargs).arguments
    hidden, (cos, sin) = given["hidden_states"][0], given["position_embeddings"]
    half = indexer.qk_rope_head_dim // 2
    turn = torch.complex(cos[0, :, :half], sin[0, :, :half])

    def rotated(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x[..., : 2 * half].unflatten(-1, (half, 2)).contiguous())
        turned = torch.view_as_real(pairs * turn.view(len(x), *[1] * (x.ndim - 2), half))
        return torch.cat([turned.flatten(-2), x[..., 2 * half :]], dim=-1)

    query = rotated(indexer.wq_b(given["q_resid"])[0].view(len(hidden), indexer.n_heads, -1))
    key = rotated(indexer.k_norm(indexer.wk(hidden)))
    dots = torch.einsum("thd,sd->hts", query, key).relu()
    weights = indexer.weights_proj(hidden)
    scores = torch.einsum("th,hts->ts", weights, dots)
    size = torch.einsum("th,hts->ts", weights.abs(), dots).tril().amax(dim=1, keepdim=True)
    future = torch.ones(len(hidden), len(hidden), dtype=torch.bool).triu(1)
    return (scores / size).masked_fill(future, float("-inf"))
