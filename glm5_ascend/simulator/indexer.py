"""Lightning indexer: its paged key cache and the selection of keys for one layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from glm5_ascend.ops import layer_norm, lightning_indexer, rotary_interleaved, write_paged_rows
from glm5_ascend.simulator.injection import INDICES, Positions, injected
from glm5_ascend.simulator.kernels import sparse_backend
from glm5_ascend.simulator.metadata import IndexerKeyBackend, SparseMlaMetadata

_K_NORM_EPS = 1e-6  # fixed in every implementation of the model


class IndexerKeyCache(torch.nn.Module, AttentionLayerBase):  # type: ignore[misc]
    """Keys of one indexer, [blocks, block_size, index_head_dim] in the model's dtype.

    Takes the place of vLLM's cache of FP8 keys under the same layer name.
    """

    def __init__(self, width: int, replaced: Any) -> None:
        super().__init__()
        config = get_current_vllm_config()
        self.width = width
        self.prefix: str = replaced.prefix
        self.dtype: torch.dtype = config.model_config.dtype
        self.kv_cache = torch.tensor([])
        config.compilation_config.static_forward_context[self.prefix] = self

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        # vLLM keeps an axis of one head.
        self.kv_cache = kv_cache.squeeze(1) if kv_cache.ndim == 4 else kv_cache

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        return MLAAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=1,
            head_size=self.width,
            dtype=self.dtype,
        )

    def get_attn_backend(self) -> type[IndexerKeyBackend]:
        return IndexerKeyBackend


class Selector:
    """Computes the top-k positions of a layer that owns an indexer.

    ``weights`` of vLLM's ``Indexer`` module are used as loaded; its forward is not.
    """

    def __init__(self, indexer: Any, layer: int, positions: Positions) -> None:
        self.indexer = indexer
        self.heads: int = indexer.n_head
        self.width: int = indexer.head_dim
        self.rope: int = indexer.rope_dim
        self.topk: int = indexer.topk_tokens
        self.layer = layer
        self.positions = positions
        indexer.k_cache = IndexerKeyCache(self.width, indexer.k_cache)

    @property
    def cache_name(self) -> str:
        """Layer name under which vLLM keeps the key cache."""
        name: str = self.indexer.k_cache.prefix
        return name

    def select(
        self, hidden: Tensor, q_latent: Tensor, cos: Tensor, sin: Tensor, batch: SparseMlaMetadata
    ) -> Tensor:
        """Store this batch's keys and return int32 [tokens, topk], ascending, -1 padded.

        Args:
            hidden: [tokens, hidden] after input_layernorm.
            q_latent: [tokens, q_lora] after q_a_layernorm.
            cos, sin: [tokens, rope / 2].
            batch: where the tokens and their keys lie.
        """
        module = self.indexer
        query = module.wq_b(q_latent)[0].view(-1, self.heads, self.width)
        key, weights = module.wk_weights_proj(hidden)[0].split([self.width, self.heads], -1)
        key = layer_norm(key, module.k_norm.weight, module.k_norm.bias, _K_NORM_EPS)
        query, key = self._rotated(query, cos, sin), self._rotated(key, cos, sin)
        cache = module.k_cache.kv_cache
        write_paged_rows(cache, key, batch.slots)
        chosen, _ = lightning_indexer(
            query,
            cache.unsqueeze(2),
            weights.float() * (self.heads**-0.5 * self.width**-0.5),
            actual_seq_lengths_query=batch.query_ends,
            actual_seq_lengths_key=batch.key_lengths,
            block_table=batch.block_table,
            layout_query="TND",
            layout_key="PA_BSND",
            sparse_count=self.topk,
            backend=sparse_backend(query),
        )
        chosen = chosen.squeeze(1)
        given = injected(self.layer, INDICES)
        return chosen if given is None else given.replace(chosen, self.positions.current)

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The first ``rope`` of the last axis rotated, the rest as it is."""
        rotated = rotary_interleaved(x[..., : self.rope], cos=cos, sin=sin)
        return torch.cat([rotated, x[..., self.rope :]], -1)
