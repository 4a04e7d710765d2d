"""Sparse multi-head latent attention: projections, caches and top-k attention of one layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import MLAAttentionImpl

from glm5_ascend.env import read
from glm5_ascend.ops import (
    rms_norm,
    rotary_interleaved,
    rotary_table,
    sparse_flash_attention,
    write_paged_rows,
)
from glm5_ascend.simulator.dense import in_tiles
from glm5_ascend.simulator.indexer import Selector
from glm5_ascend.simulator.injection import Positions
from glm5_ascend.simulator.kernels import sparse_backend
from glm5_ascend.simulator.metadata import SparseMlaMetadata, batch_of

_HF_LATENT_EPS = 1e-6


class SparseMlaImpl(MLAAttentionImpl):  # type: ignore[misc]
    """Cache update and attention with absorbed weights over the positions that a row names."""

    is_sparse = True
    supports_dense_mha_prefill = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        *args: Any,
        kv_lora_rank: int,
        topk_indices_buffer: Tensor,
        **kwargs: Any,
    ) -> None:
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads
        self.kv_lora_rank = kv_lora_rank
        self.topk_indices_buffer = topk_indices_buffer

    def do_kv_cache_update(
        self,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        *args: Any,
    ) -> None:
        """Write rows [latent | rotated key] at their slots."""
        write_paged_rows(kv_cache, torch.cat([kv_c_normed, k_pe], -1), slot_mapping)

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: Tensor, attn_metadata: SparseMlaMetadata, layer: Any
    ) -> tuple[Tensor, None]:
        """[tokens, heads, kv_lora] of q = (latent part, rotated part); ``layer`` holds indices."""
        latent, rotated = q
        cache = kv_c_and_k_pe_cache.unsqueeze(2)
        out, _, _ = sparse_flash_attention(
            latent,
            cache[..., : self.kv_lora_rank],
            None,
            layer.topk_indices_buffer[: latent.shape[0]].unsqueeze(1),
            self.scale,
            query_rope=rotated,
            key_rope=cache[..., self.kv_lora_rank :],
            actual_seq_lengths_query=attn_metadata.query_ends,
            actual_seq_lengths_kv=attn_metadata.key_lengths,
            block_table=attn_metadata.block_table,
            layout_query="TND",
            layout_kv="PA_BSND",
            backend=sparse_backend(latent),
        )
        return out, None


class SparseMla(torch.nn.Module):
    """Takes the place of vLLM's ``MultiHeadLatentAttentionWrapper`` and uses its sub-modules.

    ``skip_topk`` and ``topk_indices_buffer`` keep their names: vLLM's MTP proposer sets the first
    from draft step 2 on and moves rows of the second.
    """

    def __init__(
        self,
        stock: Any,
        buffer: Tensor,
        *,
        layer: int,
        theta: float,
        eps: float,
        where: Positions,
    ) -> None:
        super().__init__()
        self.fused_qkv_a_proj = stock.fused_qkv_a_proj
        self.q_a_layernorm = stock.q_a_layernorm
        self.q_b_proj = stock.q_b_proj
        self.kv_a_layernorm = stock.kv_a_layernorm
        self.o_proj = stock.o_proj
        self.mla_attn = stock.mla_attn
        self.heads: int = stock.num_heads
        self.q_lora: int = stock.q_lora_rank
        self.kv_lora: int = stock.kv_lora_rank
        self.nope: int = stock.qk_nope_head_dim
        self.rope: int = stock.qk_rope_head_dim
        self.skip_topk: bool = stock.skip_topk
        self.theta = theta
        self.latent_eps = _HF_LATENT_EPS if read("GLM5_ASCEND_LATENT_EPS") == "hf" else eps
        self.topk_indices_buffer: Tensor = buffer
        self.selector = None if stock.indexer is None else Selector(stock.indexer, layer, where)

    def forward(self, positions: Tensor, hidden_states: Tensor, *unused: Any) -> Tensor:
        """[tokens, hidden] of hidden_states [tokens, hidden] at positions int64 [tokens]."""
        q_latent, latent, k_pe = self.fused_qkv_a_proj(hidden_states)[0].split(
            [self.q_lora, self.kv_lora, self.rope], -1
        )
        q_latent = rms_norm(q_latent, self.q_a_layernorm.weight, self.latent_eps)
        latent = rms_norm(latent, self.kv_a_layernorm.weight, self.latent_eps)
        query = self.q_b_proj(q_latent)[0].view(-1, self.heads, self.nope + self.rope)
        batch = batch_of(self.mla_attn.layer_name)
        if batch is None:
            # A run without requests: data parallel ranks still meet in the collectives.
            width = self.heads * self.mla_attn.v_head_dim
            return self._output(hidden_states.new_zeros(hidden_states.shape[0], width))
        n = batch.tokens
        cos, sin = rotary_table(positions[:n], self.rope, self.theta)
        if self.selector is not None and not self.skip_topk:
            chosen = self.selector.select(hidden_states[:n], q_latent[:n], cos, sin, batch)
            self.topk_indices_buffer[:n] = chosen
        k_pe = rotary_interleaved(k_pe[:n], cos=cos, sin=sin)
        out = self._attend(query[:n], latent[:n], k_pe, cos, sin, batch)
        if n < hidden_states.shape[0]:
            out = torch.nn.functional.pad(out, (0, 0, 0, hidden_states.shape[0] - n))
        return self._output(out)

    def _attend(
        self,
        query: Tensor,
        latent: Tensor,
        k_pe: Tensor,
        cos: Tensor,
        sin: Tensor,
        batch: SparseMlaMetadata,
    ) -> Tensor:
        attention = self.mla_attn
        attention.impl.do_kv_cache_update(latent, k_pe, attention.kv_cache, batch.slots)
        q_nope, q_pe = query[..., : self.nope], query[..., self.nope :]
        q = per_head(q_nope, attention.W_UK_T), rotary_interleaved(q_pe, cos=cos, sin=sin)
        out, _ = attention.impl.forward_mqa(q, attention.kv_cache, batch, self)
        return per_head(out, attention.W_UV).flatten(1)

    def _output(self, x: Tensor) -> Tensor:
        y: Tensor = self.o_proj(x)[0]
        return y


def per_head(x: Tensor, weight: Tensor) -> Tensor:
    """[T, heads, N] of x [T, heads, K] and weight [heads, K, N], batch-independent."""
    return in_tiles(lambda tile: torch.bmm(tile.transpose(0, 1), weight).transpose(0, 1), x)
