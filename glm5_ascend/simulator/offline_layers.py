"""One decoder layer of ``glm_moe_dsa`` over a whole sequence without cache.

Shapes: T tokens, H hidden, N heads. Formulas as in the published modelling code of the family
(MLA in its absorbed form, DSA indexer with interleaved rotary on the first dims of each head,
sigmoid router with a selection bias); all numerics come from :mod:`glm5_ascend.ops`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from glm5_ascend.config import Glm5Config
from glm5_ascend.ops import (
    layer_norm,
    lightning_indexer,
    moe_gating,
    rms_norm,
    rotary_interleaved,
    sparse_flash_attention,
)
from glm5_ascend.simulator.offline_linear import Linear, RoutedExperts

_INDEXER_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm with ``weight`` [n]."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Indexer:
    """DSA lightning indexer: scores Σ_h w_h · ReLU(q_h · k) and keeps the ``index_topk`` best."""

    config: Glm5Config
    wq_b: Linear
    wk: Linear
    weights_proj: Linear
    k_norm_weight: Tensor
    k_norm_bias: Tensor

    def __call__(self, x: Tensor, q_latent: Tensor, positions: Tensor) -> Tensor:
        """Return int32 [T, index_topk], ascending, −1 padded.

        ``x`` [T, H] is the normalised layer input, ``q_latent`` [T, q_lora_rank] is normalised.
        """
        return self.choose(*self.project(x, q_latent, positions))

    def choose(self, query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
        """Return int32 [T, index_topk] for what :meth:`project` returned."""
        chosen, _ = lightning_indexer(
            query.unsqueeze(0),
            key.unsqueeze(0),
            weights.unsqueeze(0),
            sparse_count=self.config.index_topk,
        )
        return chosen.reshape(query.shape[0], self.config.index_topk)

    def project(
        self, x: Tensor, q_latent: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query [T, heads, index_head_dim], key [T, 1, index_head_dim], both rotated by
        position, and the head weights [T, heads]."""
        config = self.config
        query = self.wq_b(q_latent).view(-1, config.index_n_heads, config.index_head_dim)
        key = layer_norm(self.wk(x), self.k_norm_weight, self.k_norm_bias, eps=_INDEXER_NORM_EPS)
        return (
            self._rotate(query, positions),
            self._rotate(key.unsqueeze(1), positions),
            self.weights_proj(x),
        )

    def _rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Rotate the first rope dims of ``heads`` [T, n, index_head_dim]."""
        width = self.config.qk_rope_head_dim
        rope = rotary_interleaved(heads[..., :width], positions, self.config.rope_theta)
        return torch.cat((rope, heads[..., width:]), -1)


@dataclass(frozen=True, slots=True)
class Attention:
    """Multi-head latent attention over the selected positions, absorbed form."""

    config: Glm5Config
    q_a: Linear
    q_a_norm: Norm
    q_b: Linear
    kv_a: Linear
    kv_a_norm: Norm
    w_uk: Tensor  # [N, qk_nope_head_dim, kv_lora_rank]
    w_uv: Tensor  # [N, v_head_dim, kv_lora_rank]
    o_proj: Linear
    indexer: Indexer | None

    def __call__(
        self, x: Tensor, positions: Tensor, shared: Tensor | None, injected: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return (output [T, H], the positions attended to, int32 [T, index_topk]).

        A layer with an indexer selects for itself unless ``injected`` replaces its choice; a
        layer without one reads ``shared``, the choice of the last layer that owns an indexer.
        """
        config = self.config
        tokens = x.shape[0]
        q_latent = self.q_a_norm(self.q_a(x))
        query = self.q_b(q_latent).view(tokens, config.num_attention_heads, config.qk_head_dim)
        q_nope = query[..., : config.qk_nope_head_dim]
        q_rope = query[..., config.qk_nope_head_dim :]
        compressed = self.kv_a(x)
        latent = self.kv_a_norm(compressed[:, : config.kv_lora_rank])
        k_rope = compressed[:, None, config.kv_lora_rank :]
        if self.indexer is None:
            chosen = shared
        elif injected is None:
            chosen = self.indexer(x, q_latent, positions)
        else:
            chosen = injected
        if chosen is None:
            raise ValueError("a layer without an indexer needs the choice of an earlier layer")
        out, _, _ = sparse_flash_attention(
            torch.einsum("tnd,ndc->tnc", q_nope, self.w_uk).unsqueeze(0),
            latent.view(1, tokens, 1, -1),
            None,
            chosen.view(1, tokens, 1, -1),
            config.qk_head_dim**-0.5,
            query_rope=rotary_interleaved(q_rope, positions, config.rope_theta).unsqueeze(0),
            key_rope=rotary_interleaved(k_rope, positions, config.rope_theta).unsqueeze(0),
        )
        values = torch.einsum("tnc,nvc->tnv", out.squeeze(0), self.w_uv)
        return self.o_proj(values.reshape(tokens, -1)), chosen


class Mlp(Protocol):
    """A feed-forward block; ``ids`` [T, top_k] are the experts used, None in a dense block."""

    def __call__(self, x: Tensor, injected: Tensor | None) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(silu(gate x) · up x)."""

    gate: Linear
    up: Linear
    down: Linear

    def __call__(self, x: Tensor, injected: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x)), None


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Routed experts plus the shared one; router logits and weights are computed in F32."""

    config: Glm5Config
    gate: Tensor  # F32 [E, H]
    bias: Tensor  # F32 [E]
    experts: RoutedExperts
    shared: GatedMlp

    def __call__(self, x: Tensor, injected: Tensor | None) -> tuple[Tensor, Tensor | None]:
        weights, ids = self.route(x, injected)
        shared, _ = self.shared(x, None)
        return self.experts(x, weights, ids) + shared, ids

    def route(self, x: Tensor, injected: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return weights F32 and ids of the experts of each row, both [T, top_k]."""
        logits = torch.nn.functional.linear(x.to(self.gate.dtype), self.gate)
        if injected is not None:
            return self._weights_at(logits, injected), injected
        return moe_gating(
            logits,
            self.bias,
            self.config.num_experts_per_tok,
            self.config.routed_scaling_factor,
            norm_topk_prob=self.config.norm_topk_prob,
        )

    def _weights_at(self, logits: Tensor, ids: Tensor) -> Tensor:
        """Router weights of experts chosen elsewhere, as :func:`moe_gating` computes them."""
        scores = torch.sigmoid(logits).gather(1, ids.long())
        if self.config.norm_topk_prob:
            scores = scores / (scores.sum(-1, keepdim=True) + 1e-20)
        return scores * self.config.routed_scaling_factor


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Pre-norm attention and feed-forward with residual connections."""

    input_norm: Norm
    attention: Attention
    post_norm: Norm
    mlp: Mlp

    def __call__(
        self,
        hidden: Tensor,
        positions: Tensor,
        shared: Tensor | None,
        topk: Tensor | None = None,
        expert_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return (hidden [T, H], positions attended to, expert ids or None in a dense layer)."""
        attended, chosen = self.attention(self.input_norm(hidden), positions, shared, topk)
        hidden = hidden + attended
        out, ids = self.mlp(self.post_norm(hidden), expert_ids)
        return hidden + out, chosen, ids
