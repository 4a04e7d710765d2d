"""Builds the layers of the offline model, one at a time, from what reads their modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from glm5_ascend.config import Glm5Config
from glm5_ascend.simulator.offline_layers import (
    Attention,
    DecoderLayer,
    GatedMlp,
    Indexer,
    Mlp,
    MoeMlp,
    Norm,
)
from glm5_ascend.simulator.offline_linear import Linear, RoutedExperts

ReadExperts = Callable[[str], RoutedExperts]


class Modules(Protocol):
    """Reads modules by name; ``WeightStore`` does, from a checkpoint as it is stored."""

    dtype: torch.dtype

    @property
    def config(self) -> Glm5Config: ...

    @property
    def uses_rot(self) -> bool: ...

    def has(self, name: str) -> bool: ...

    def raw(self, name: str) -> Tensor: ...

    def float(self, name: str) -> Tensor: ...

    def linear(self, module: str) -> Linear: ...

    def experts(self, prefix: str) -> RoutedExperts: ...


@dataclass(frozen=True, slots=True)
class MtpGlue:
    """What the MTP layer adds around its decoder layer."""

    embedding: Tensor  # [vocabulary, H]
    enorm: Norm
    hnorm: Norm
    eh_proj: Linear
    norm: Norm
    head: Tensor  # [vocabulary, H]
    rot: Tensor | None  # [H, H]; nn.Linear weight applied to every incoming hidden state


def load_norm(store: Modules, name: str, eps: float | None = None) -> Norm:
    """Read one RMSNorm; ``eps`` defaults to ``rms_norm_eps``."""
    return Norm(store.float(f"{name}.weight"), store.config.rms_norm_eps if eps is None else eps)


def load_layer(
    store: Modules, layer: int, latent_eps: float, read_experts: ReadExperts | None = None
) -> DecoderLayer:
    """Read decoder layer ``layer``; the MTP layer has the index ``num_hidden_layers``.

    ``read_experts`` makes the routed experts below a prefix (``…mlp.experts``); without it they
    are all read at once.
    """
    prefix = f"model.layers.{layer}"
    return DecoderLayer(
        load_norm(store, f"{prefix}.input_layernorm"),
        _load_attention(store, layer, latent_eps),
        load_norm(store, f"{prefix}.post_attention_layernorm"),
        _load_mlp(store, layer, read_experts or store.experts),
    )


def load_mtp_glue(store: Modules, embedding: Tensor, head: Tensor) -> MtpGlue:
    """Read the MTP parts; a rotated export carries its own embedding and head."""
    prefix = f"model.layers.{store.config.num_hidden_layers}"
    own_embedding = f"{prefix}.embed_tokens.weight"
    own_head = f"{prefix}.shared_head.head.weight"
    return MtpGlue(
        store.float(own_embedding) if store.has(own_embedding) else embedding,
        load_norm(store, f"{prefix}.enorm"),
        load_norm(store, f"{prefix}.hnorm"),
        store.linear(f"{prefix}.eh_proj"),
        load_norm(store, f"{prefix}.shared_head.norm"),
        store.float(own_head) if store.has(own_head) else head,
        store.float("rot.weight") if store.uses_rot else None,
    )


def _load_attention(store: Modules, layer: int, latent_eps: float) -> Attention:
    config = store.config
    prefix = f"model.layers.{layer}.self_attn"
    kv_b = store.float(f"{prefix}.kv_b_proj.weight").view(
        config.num_attention_heads, -1, config.kv_lora_rank
    )
    indexer = None
    if config.has_indexer(layer):
        indexer = Indexer(
            config,
            store.linear(f"{prefix}.indexer.wq_b"),
            store.linear(f"{prefix}.indexer.wk"),
            store.linear(f"{prefix}.indexer.weights_proj"),
            store.float(f"{prefix}.indexer.k_norm.weight"),
            store.float(f"{prefix}.indexer.k_norm.bias"),
        )
    return Attention(
        config,
        store.linear(f"{prefix}.q_a_proj"),
        load_norm(store, f"{prefix}.q_a_layernorm", latent_eps),
        store.linear(f"{prefix}.q_b_proj"),
        store.linear(f"{prefix}.kv_a_proj_with_mqa"),
        load_norm(store, f"{prefix}.kv_a_layernorm", latent_eps),
        kv_b[:, : config.qk_nope_head_dim].contiguous(),
        kv_b[:, config.qk_nope_head_dim :].contiguous(),
        store.linear(f"{prefix}.o_proj"),
        indexer,
    )


def _load_mlp(store: Modules, layer: int, read_experts: ReadExperts) -> Mlp:
    prefix = f"model.layers.{layer}.mlp"
    if not store.config.is_moe(layer):
        return _load_gated(store, prefix)
    router = torch.promote_types(torch.float32, store.dtype)
    return MoeMlp(
        store.config,
        store.raw(f"{prefix}.gate.weight").to(router),
        store.raw(f"{prefix}.gate.e_score_correction_bias").to(router),
        read_experts(f"{prefix}.experts"),
        _load_gated(store, f"{prefix}.shared_experts"),
    )


def _load_gated(store: Modules, prefix: str) -> GatedMlp:
    return GatedMlp(
        store.linear(f"{prefix}.gate_proj"),
        store.linear(f"{prefix}.up_proj"),
        store.linear(f"{prefix}.down_proj"),
    )
