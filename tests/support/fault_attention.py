"""Planted faults of rotary embedding, attention and indexer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers.cache_utils import DynamicIndexedLayer

from tests.support.fault_tools import Break, Proxy, attributes, hooks, layers_of, modeling
from tests.support.hf import HfOracle, set_latent_eps


def _rotate_half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def half_split_rope(*, indexer: bool) -> Break:
    """Pairs (j, j + d/2) instead of (2j, 2j + 1), in the indexer or in MLA."""
    original = modeling.apply_rotary_pos_emb_interleave

    def rotate(q: Any, k: Any, cos: Any, sin: Any, *, unsqueeze_dim: int = 1) -> Any:
        # transformers rotates [B, S, heads, dim] in the indexer and [B, heads, S, dim] in MLA.
        if (unsqueeze_dim == 2) is not indexer:
            return original(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        cos, sin = (t.chunk(2, dim=-1)[0].unsqueeze(unsqueeze_dim) for t in (cos, sin))
        return _rotate_half(q, cos, sin), _rotate_half(k, cos, sin)

    return lambda _: mock.patch.object(modeling, "apply_rotary_pos_emb_interleave", rotate)


def relu_missing(_: HfOracle) -> AbstractContextManager[Any]:
    """Index scores without the ReLU."""
    without: Any = Proxy(modeling.F, relu=lambda x: x)
    return mock.patch.object(modeling, "F", without)


def _indexers(oracle: HfOracle) -> list[Any]:
    found = (layer.self_attn.indexer for layer in layers_of(oracle))
    return [indexer for indexer in found if indexer is not None]


class _KeyNorm(nn.Module):
    """The indexer's k_norm with a defect."""

    def __init__(self, norm: Any, *, centred: bool, bias: bool, eps: float) -> None:
        super().__init__()
        self.norm, self.centred, self.bias, self.eps = norm, centred, bias, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise [..., D]."""
        mean = x.mean(dim=-1, keepdim=True) if self.centred else torch.zeros(())
        moment = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
        y: torch.Tensor = (x - mean) * torch.rsqrt(moment + self.eps) * self.norm.weight
        return y + self.norm.bias if self.bias else y


def key_norm(*, centred: bool = True, bias: bool = True, eps: float = 1e-6) -> Break:
    """k_norm as RMSNorm, without bias, or with another epsilon."""

    def apply(oracle: HfOracle) -> AbstractContextManager[None]:
        return attributes(
            [
                (i, "k_norm", _KeyNorm(i.k_norm, centred=centred, bias=bias, eps=eps))
                for i in _indexers(oracle)
            ]
        )

    return apply


@contextmanager
def unnormalised_query_latent(oracle: HfOracle) -> Iterator[None]:
    """The indexer reads q_a's output before q_a_layernorm."""
    handles = []
    for layer in layers_of(oracle):
        attention = layer.self_attn
        seen: dict[str, Any] = {}
        if attention.indexer is None:
            continue

        def note(_m: Any, inputs: Any, seen: dict[str, Any] = seen) -> None:
            seen["latent"] = inputs[0]

        def swap(_m: Any, args: Any, seen: dict[str, Any] = seen) -> Any:
            return (args[0], seen["latent"], *args[2:])

        handles.append(attention.q_a_layernorm.register_forward_pre_hook(note))
        handles.append(attention.indexer.register_forward_pre_hook(swap))
    with hooks(handles):
        yield


def index_share_ignored(oracle: HfOracle) -> AbstractContextManager[None]:
    """Shared layers select by themselves, with the preceding indexer's weights."""
    changes, latest = [], None
    for layer in layers_of(oracle):
        attention = layer.self_attn
        if attention.indexer is None:
            changes.append((attention, "indexer", copy.deepcopy(latest)))
        else:
            latest = attention.indexer
    return attributes(changes)


def default_offset(oracle: HfOracle) -> AbstractContextManager[None]:
    """Schedule with the default offset 2 although the configuration says 3."""
    freq = oracle.raw_config["index_topk_freq"]
    shared = [i for i in range(oracle.layers) if max(i - 1, 0) % freq]
    return attributes([(layers_of(oracle)[i].self_attn, "indexer", None) for i in shared])


def rotary_frequencies(theta: float, width: int) -> Break:
    """Frequencies of another theta, or of another width than qk_rope_head_dim."""

    def apply(oracle: HfOracle) -> AbstractContextManager[None]:
        rotary = oracle.model.model.rotary_emb
        count = len(rotary.inv_freq)
        values = theta ** (-torch.arange(0, 2 * count, 2).float() / width)
        return attributes([(rotary, "inv_freq", values)])

    return apply


@contextmanager
def latent_eps(oracle: HfOracle) -> Iterator[None]:
    """Latent norms with transformers' class default 1e-6 instead of the configuration's 1e-5."""
    set_latent_eps(oracle.model, 1e-6)
    try:
        yield
    finally:
        set_latent_eps(oracle.model, oracle.latent_eps)


def softmax_scale(oracle: HfOracle) -> AbstractContextManager[None]:
    """Attention scaled by the nope width instead of nope + rope."""
    wrong = float(oracle.config.qk_nope_head_dim) ** -0.5
    return attributes([(layer.self_attn, "scaling", wrong) for layer in layers_of(oracle)])


def index_cache_reset(_: HfOracle) -> AbstractContextManager[Any]:
    """The index-key cache restarts with every chunk of more than one token."""
    original = DynamicIndexedLayer.update_indexer

    def update(self: Any, keys: torch.Tensor) -> torch.Tensor:
        if keys.shape[1] > 1:
            past = 0 if self.indexer_keys is None else self.indexer_keys.shape[1]
            keys = nn.functional.pad(keys, (0, 0, past, 0))
            self.indexer_keys = None
            self.is_indexer_initialized = False
        return original(self, keys)

    return mock.patch.object(DynamicIndexedLayer, "update_indexer", update)
