"""Two attention layers of GLM-5 from the public operators; the second shares the first's indices.

Operators that are right one by one can still be put together wrongly. Here they run as in the
model: norm, MLA pre-processing, indexer with its own norm, rotation and cache, sparse attention.
The oracle expands the latents into keys and values per head and masks a dense softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify import compare, formula
from glm5_ascend.ops.verify.case import Call, Case, Outputs, Problem, Verdict
from glm5_ascend.ops.verify.chain import (
    EPS,
    HEADS,
    HIDDEN,
    INDEX_DIM,
    INDEX_HEADS,
    KEY_EPS,
    LATENT,
    NOPE,
    ROPE,
    SCALE,
    THETA,
    TOP_K,
    Prompts,
    draw,
    forward,
)
from glm5_ascend.ops.verify.compare import Figures
from glm5_ascend.ops.verify.formula import Array


@dataclass(frozen=True)
class Wrong:
    """What the oracle does wrong to recognise a mistake."""

    relu: bool = True
    half_split_index: bool = False
    half_split_attention: bool = False
    raw_latent: bool = False
    key_norm: str = "layer"
    share: bool = True
    scale: float = SCALE


@dataclass(frozen=True, kw_only=True)
class LayersCase(Case):
    """Prompts of ``lengths`` tokens, longer than the 16 positions that are kept, in F32."""

    lengths: tuple[int, ...] = (90, 41)

    @property
    def operator(self) -> str:
        """The composition."""
        return "attention_layers"

    def __str__(self) -> str:
        seed = f"-seed{self.seed}" if self.seed else ""
        return "prompts-" + "-".join(map(str, self.lengths)) + f"-top{TOP_K}" + seed

    def problem(self) -> Problem:
        """Draw until no chosen position is a near-tie of one that is left out."""
        for attempt in range(100):
            problem = LayersProblem(self, 100 * self.seed + attempt)
            if problem.margin > 1e-3:
                return problem
        raise ValueError("every draw has near-ties")


class LayersProblem(Problem):
    """Hidden states of all tokens, two layers of weights, and the expanded result."""

    def __init__(self, case: LayersCase, seed: int) -> None:
        self.case = case
        gen = torch.Generator().manual_seed(seed)
        self.layers = [draw(gen) for _ in range(2)]
        self.hidden = torch.randn(sum(case.lengths), HIDDEN, generator=gen)
        self.margin = float("inf")
        self.oracle, self.chosen = self.expand(np.float64)
        self.low, _ = self.expand(np.float32)

    def expand(self, dtype: Any, wrong: Wrong | None = None) -> tuple[Tensor, Tensor]:
        """(hidden states [T, hidden] after both layers, positions int32 [T, 16])."""
        hidden, chosen = [], []
        for part in self.hidden.tensor_split(np.cumsum(self.case.lengths)[:-1].tolist()):
            x = part.numpy().astype(dtype)
            masks: list[Array] = []
            for number, layer in enumerate(self.layers):
                weights = {name: w.numpy().astype(dtype) for name, w in layer.items()}
                first = {name: w.numpy().astype(dtype) for name, w in self.layers[0].items()}
                reused = masks[0] if number and (wrong or _RIGHT).share else None
                x, mask, margin = _expanded(x, weights, first, reused, wrong or _RIGHT)
                self.margin = self.margin if wrong else min(self.margin, margin)
                masks.append(mask)
            hidden.append(torch.from_numpy(x))
            chosen.append(_positions(masks[-1]))
        return torch.cat(hidden), torch.cat(chosen)

    def run(self, call: Call, *, shuffled: bool = False) -> Outputs:
        """``hidden`` and the last layer's ``indices``; shuffled: prompts backwards."""
        count = len(self.case.lengths)
        batch = Prompts(self.case.lengths, range(count)[::-1] if shuffled else range(count))
        hidden, indices = forward(call, batch.take(self.hidden), self.layers, batch)
        return {"hidden": batch.restore(hidden), "indices": batch.restore(indices[:, 0])}

    def judge(self, outputs: Outputs) -> Figures:
        """Hidden states up to F32, positions exactly."""
        return self._against(outputs, self.oracle, self.low, self.chosen)

    def _against(self, outputs: Outputs, oracle: Tensor, low: Tensor, chosen: Tensor) -> Figures:
        same = (outputs["indices"] == chosen) & (chosen >= 0)
        recall = float(same.sum() / (chosen >= 0).sum())
        positions = compare.identical(outputs["indices"], chosen, name="indices")
        hidden = compare.close(outputs["hidden"], oracle, low, name="hidden")
        return compare.worst([hidden, Figures(recall=recall, problem=positions.problem)])

    def mistakes(self) -> Iterator[tuple[str, Verdict]]:
        """Each expands the wrong way."""

        def expands(**change: Any) -> Verdict:
            def verdict(outputs: Outputs) -> Figures:
                oracle, chosen = self.expand(np.float64, Wrong(**change))
                low, _ = self.expand(np.float32, Wrong(**change))
                return self._against(outputs, oracle, low, chosen)

            return verdict

        yield "missing ReLU", expands(relu=False)
        yield "wrong rope style in the indexer", expands(half_split_index=True)
        yield "wrong rope style in attention", expands(half_split_attention=True)
        yield "wrong rope style", expands(half_split_index=True, half_split_attention=True)
        yield "un-normalised q latent", expands(raw_latent=True)
        yield "k_norm as RMSNorm", expands(key_norm="rms")
        yield "k_norm bias dropped", expands(key_norm="no bias")
        yield "IndexShare ignored", expands(share=False)
        yield "softmax scale of the nope part alone", expands(scale=NOPE**-0.5)


_RIGHT = Wrong()


def _expanded(
    x: Array, w: dict[str, Array], indexer: dict[str, Array], reused: Array | None, wrong: Wrong
) -> tuple[Array, Array, float]:
    """(hidden [T, H], mask [T, T] of the keys each query reads, how far apart the scores are)."""
    angle = np.arange(len(x))[:, None] * THETA ** (-np.arange(0, ROPE, 2) / ROPE)
    turn = np.exp(1j * angle).astype(np.result_type(x.dtype, np.complex64))
    h = formula.rms_norm(x, w["gamma_in"], EPS)
    raw = h @ w["down_q"]
    latent_q = formula.rms_norm(raw, w["gamma_q"], EPS)
    down = h @ w["down_kv"]
    latent = formula.rms_norm(down[:, :LATENT], w["gamma_kv"], EPS)
    query = (latent_q @ w["up_q"]).reshape(len(x), HEADS, NOPE + ROPE)
    half = wrong.half_split_attention
    rotated = formula.turn(query[..., NOPE:], turn[:, None], half_split=half)
    key_rope = formula.turn(down[:, LATENT:], turn, half_split=half)
    keys = np.einsum("sl,hdl->shd", latent, w["up_k"])
    dots = np.einsum("thd,shd->hts", query[..., :NOPE], keys) + np.einsum(
        "thd,sd->hts", rotated, key_rope
    )
    mask, margin = reused, float("inf")
    if mask is None:
        mask, margin = _selected(h, raw if wrong.raw_latent else latent_q, indexer, turn, wrong)
    scores = np.where(mask, dots * x.dtype.type(wrong.scale), -np.inf)
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    values = np.einsum("sl,hlv->hsv", latent, w["up_v"])
    mixed = (weight @ values).transpose(1, 0, 2).reshape(len(x), -1)
    return x + mixed @ w["out"], mask, margin


def _selected(
    h: Array, latent_q: Array, w: dict[str, Array], turn: Array, wrong: Wrong
) -> tuple[Array, float]:
    query = (latent_q @ w["index_q"]).reshape(len(h), INDEX_HEADS, INDEX_DIM)
    plain = h @ w["index_k"]
    key = {
        "layer": lambda: formula.layer_norm(plain, w["key_gamma"], w["key_beta"], KEY_EPS),
        "rms": lambda: formula.rms_norm(plain, w["key_gamma"], KEY_EPS) + w["key_beta"],
        "no bias": lambda: formula.layer_norm(plain, w["key_gamma"], 0 * w["key_beta"], KEY_EPS),
    }[wrong.key_norm]()
    half = wrong.half_split_index
    query[..., :ROPE] = formula.turn(query[..., :ROPE], turn[:, None], half_split=half)
    key[:, :ROPE] = formula.turn(key[:, :ROPE], turn, half_split=half)
    scores = formula.index_scores(query, key, h @ w["index_w"], h.dtype.type, relu=wrong.relu)
    mask, margin = np.zeros(scores.shape, bool), float("inf")
    for t, row in enumerate(scores):
        mask[t, formula.best_positions(row[: t + 1], TOP_K)] = True
        if t >= TOP_K:
            ranked = np.sort(row[: t + 1])[::-1]
            margin = min(margin, float(ranked[TOP_K - 1] - ranked[TOP_K]))
    return mask, margin


def _positions(mask: Array) -> Tensor:
    out = torch.full((len(mask), TOP_K), -1, dtype=torch.int32)
    for t, row in enumerate(mask):
        chosen = torch.from_numpy(np.flatnonzero(row)).int()
        out[t, : len(chosen)] = chosen
    return out


def cases() -> Iterator[Case]:
    """Two prompts, and one alone."""
    yield LayersCase(size="quick")
    yield LayersCase(lengths=(62,), seed=1)
