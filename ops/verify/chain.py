"""Two attention layers of GLM-5 made of public functions; the second reads the first's indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glm5_ascend.ops.verify.case import Call, invoke
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


def draw(gen: torch.Generator) -> Layer:
    """Weights of one layer, normal, of about unit gain."""
    layer = {}
    for name, shape in _SHAPES.items():
        values = torch.randn(shape, generator=gen)
        layer[name] = values * shape[-2] ** -0.5 if len(shape) > 1 else 1 + values / 4
    return layer


class Prompts:
    """Prompts in some order: where their tokens lie in the batch and in the pages."""

    def __init__(self, lengths: Sequence[int], order: Sequence[int]) -> None:
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
        """A poisoned cache [blocks, 16, 1, width]."""
        return poison((self.blocks, PAGE, 1, width), torch.zeros(0))

    def take(self, rows: Tensor) -> Tensor:
        """Tokens in the order of the batch."""
        return rows[self._tokens]

    def restore(self, rows: Tensor) -> Tensor:
        """Tokens in the order of the prompts."""
        out = torch.empty_like(rows)
        out[self._tokens] = rows
        return out


def indices_of_layer(number: int, select: Callable[[], Tensor], previous: Tensor | None) -> Tensor:
    """The second layer owns no indexer: it reads what the first one chose (IndexShare)."""
    return select() if number == 0 or previous is None else previous


def forward(
    call: Call, hidden: Tensor, layers: list[Layer], batch: Prompts
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

        select = partial(_select, call, h, latent_q, layers[0], (cos, sin), batch, ends)
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


def _prologue(h: Tensor, layer: Layer, cos: Tensor, sin: Tensor, batch: Prompts) -> dict[str, Any]:
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
    batch: Prompts,
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
