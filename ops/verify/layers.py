"""Two attention layers of GLM-5 from the public operators; the second shares the first's indices.

Operators that are right one by one can still be put together wrongly. Here they run as in the
model: norm, MLA pre-processing, indexer with its own norm, rotation and cache, sparse attention.
The oracle expands the latents into keys and values per head and masks a dense softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify import compare, formula
from glm5_ascend.ops.verify.case import Call, Case, Outputs, Problem, Verdict, invoke
from glm5_ascend.ops.verify.compare import Figures
from glm5_ascend.ops.verify.formula import Array
from glm5_ascend.ops.verify.requests import poison

HIDDEN, Q_LORA, HEADS, NOPE, ROPE, LATENT, VALUE = 96, 48, 4, 24, 16, 32, 32
INDEX_HEADS, INDEX_DIM, TOP_K, PAGE = 16, 32, 16, 16
THETA, EPS, KEY_EPS = 1e4, 1e-5, 1e-6
SCALE = (NOPE + ROPE) ** -0.5
_SHAPES = {
    "gamma_in": (HIDDEN,),
    "gamma_q": (Q_LORA,),
    "gamma_kv": (LATENT,),
    "down_q": (HIDDEN, Q_LORA),
    "down_kv": (HIDDEN, LATENT + ROPE),
    "up_q": (Q_LORA, HEADS * (NOPE + ROPE)),
    "up_k": (HEADS, NOPE, LATENT),
    "up_v": (HEADS, LATENT, VALUE),
    "out": (HEADS * VALUE, HIDDEN),
    "index_q": (Q_LORA, INDEX_HEADS * INDEX_DIM),
    "index_k": (HIDDEN, INDEX_DIM),
    "index_w": (HIDDEN, INDEX_HEADS),
    "key_gamma": (INDEX_DIM,),
    "key_beta": (INDEX_DIM,),
}
Layer = dict[str, Tensor]


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
        self.layers = [_draw(gen) for _ in range(2)]
        self.hidden = torch.randn(sum(case.lengths), HIDDEN, generator=gen)
        self.margin = float("inf")
        self.oracle, self.chosen = self.expand(np.float64)
        self.low, _ = self.expand(np.float32)

    def expand(self, dtype: Any, wrong: Wrong | None = None) -> tuple[Tensor, Tensor]:
        """(hidden states [T, hidden] after both layers, positions int32 [T, 16])."""
        hidden, chosen = [], []
        for part in self.hidden.split(list(self.case.lengths)):
            x, masks = part.numpy().astype(dtype), []
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
        batch = _Prompts(self.case.lengths, range(count)[::-1] if shuffled else range(count))
        hidden, indices = _forward(call, batch.take(self.hidden), self.layers, batch)
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


def _draw(gen: torch.Generator) -> Layer:
    layer = {}
    for name, shape in _SHAPES.items():
        values = torch.randn(shape, generator=gen)
        layer[name] = values * shape[-2] ** -0.5 if len(shape) > 1 else 1 + values / 4
    return layer


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


class _Prompts:
    """Prompts in some order: where their tokens lie in the batch and in the pages."""

    def __init__(self, lengths: tuple[int, ...], order: Any) -> None:
        starts = np.cumsum([0, *lengths])
        self._tokens = torch.cat([torch.arange(starts[b], starts[b + 1]) for b in order])
        ordered = [lengths[b] for b in order]
        self.positions = torch.cat([torch.arange(n) for n in ordered])
        self.lengths = torch.tensor(ordered, dtype=torch.int32)
        pages = [-(-n // PAGE) for n in ordered]
        self.blocks = sum(pages) + 1
        names = torch.randperm(self.blocks, generator=torch.Generator().manual_seed(ordered[0]))
        self.block_table = torch.zeros(len(pages), max(pages), dtype=torch.int32)
        slots, used = [], 0
        for b, (n, count) in enumerate(zip(ordered, pages, strict=True)):
            mine = names[used : used + count]
            self.block_table[b, :count] = mine.int()
            slots.append((mine[:, None] * PAGE + torch.arange(PAGE)).flatten()[:n])
            used += count
        self.slots = torch.cat(slots)

    def cache(self, width: int) -> Tensor:
        return poison((self.blocks, PAGE, 1, width), torch.zeros(0))

    def take(self, rows: Tensor) -> Tensor:
        return rows[self._tokens]

    def restore(self, rows: Tensor) -> Tensor:
        out = torch.empty_like(rows)
        out[self._tokens] = rows
        return out


def indices_of_layer(number: int, select: Callable[[], Tensor], previous: Tensor | None) -> Tensor:
    """The second layer owns no indexer: it reads what the first one chose (IndexShare)."""
    return select() if number == 0 or previous is None else previous


def indexer_input(latent_q: Tensor, hidden: Tensor, layer: Layer) -> Tensor:
    """The indexer's queries come from the normalised q latent."""
    return latent_q


def _forward(
    call: Call, hidden: Tensor, layers: list[Layer], batch: _Prompts
) -> tuple[Tensor, Tensor]:
    """(hidden [T, H], indices int32 [T, 1, 16]) through the public functions."""
    step = THETA ** (-torch.arange(0, ROPE, 2).double() / ROPE)
    angle = batch.positions.double()[:, None] * step
    cos, sin = angle.cos().float(), angle.sin().float()
    ends = batch.lengths.cumsum(0).int()
    indices: Tensor | None = None
    for number, layer in enumerate(layers):
        h = invoke(call, "rms_norm", {"x": hidden, "weight": layer["gamma_in"], "eps": EPS})
        caches = {"kv_cache": batch.cache(LATENT), "kr_cache": batch.cache(ROPE)}
        query, query_rope, _, latent_q, _ = invoke(
            call, "mlapo", _prologue(h, layer, cos, sin, batch) | caches, writes=caches
        )

        def select(h: Tensor = h, latent_q: Tensor = latent_q) -> Tensor:
            latent_q = indexer_input(latent_q, h, layers[0])
            return _select(call, h, latent_q, layers[0], (cos, sin), batch, ends)

        indices = indices_of_layer(number, select, indices)
        arguments = {
            "query": query,
            "key": caches["kv_cache"],
            "value": None,
            "sparse_indices": indices,
            "scale_value": SCALE,
            "query_rope": query_rope,
            "key_rope": caches["kr_cache"],
            "actual_seq_lengths_query": ends,
            "actual_seq_lengths_kv": batch.lengths,
            "block_table": batch.block_table,
            "layout_query": "TND",
            "layout_kv": "PA_BSND",
        }
        out, _, _ = invoke(call, "sparse_flash_attention", arguments)
        mixed = torch.einsum("thl,hlv->thv", out, layer["up_v"]).flatten(1)
        hidden = hidden + mixed @ layer["out"]
    assert indices is not None
    return hidden, indices


def _prologue(h: Tensor, layer: Layer, cos: Tensor, sin: Tensor, batch: _Prompts) -> dict[str, Any]:
    return {
        "token_x": h,
        "weight_dq": layer["down_q"],
        "weight_uq_qr": layer["up_q"],
        "weight_uk": layer["up_k"],
        "weight_dkv_kr": layer["down_kv"],
        "rmsnorm_gamma_cq": layer["gamma_q"],
        "rmsnorm_gamma_ckv": layer["gamma_kv"],
        "rope_sin": sin,
        "rope_cos": cos,
        "cache_index": batch.slots,
        "rmsnorm_epsilon_cq": EPS,
        "rmsnorm_epsilon_ckv": EPS,
        "query_norm_flag": True,
    }


def _select(
    call: Call,
    h: Tensor,
    latent_q: Tensor,
    layer: Layer,
    table: tuple[Tensor, Tensor],
    batch: _Prompts,
    ends: Tensor,
) -> Tensor:
    query = (latent_q @ layer["index_q"]).view(len(h), INDEX_HEADS, INDEX_DIM)
    norm = {"weight": layer["key_gamma"], "bias": layer["key_beta"], "eps": KEY_EPS}
    key = invoke(call, "layer_norm", {"x": h @ layer["index_k"]} | norm)
    cos, sin = table
    turned = [
        torch.cat(
            (
                invoke(call, "rotary_interleaved", {"x": x[..., :ROPE], "cos": cos, "sin": sin}),
                x[..., ROPE:],
            ),
            -1,
        )
        for x in (query, key)
    ]
    cache = batch.cache(INDEX_DIM)
    written = {"cache": cache.squeeze(2), "rows": turned[1], "slot_mapping": batch.slots}
    invoke(call, "write_paged_rows", written, writes=("cache",))
    arguments = {
        "query": turned[0],
        "key": cache,
        "weights": h @ layer["index_w"],
        "actual_seq_lengths_query": ends,
        "actual_seq_lengths_key": batch.lengths,
        "block_table": batch.block_table,
        "layout_query": "TND",
        "layout_key": "PA_BSND",
        "sparse_count": TOP_K,
    }
    indices: Tensor = invoke(call, "lightning_indexer", arguments)[0]
    return indices


def cases() -> Iterator[Case]:
    """Two prompts, and one alone."""
    yield LayersCase(size="quick")
    yield LayersCase(lengths=(62,), seed=1)
