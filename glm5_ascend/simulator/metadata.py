"""Attention backend of the simulator: names, cache layout and per-batch metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.forward_context import get_forward_context
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
)


@dataclass
class SparseMlaMetadata(AttentionMetadata):  # type: ignore[misc]
    """One batch of ``tokens`` query tokens of several requests.

    ``query_ends`` int32 [requests] are prefix sums, ``key_lengths`` int32 [requests] count the
    keys incl. this batch's, ``block_table`` int32 [requests, blocks], ``slots`` int64 [tokens].
    """

    tokens: int
    query_ends: torch.Tensor
    key_lengths: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor

    @property
    def num_actual_tokens(self) -> int:
        """vLLM's name of ``tokens``."""
        return self.tokens


class SparseMlaMetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Translates vLLM's common metadata; every token takes the same path, prefill or decode."""

    _cudagraph_support: ClassVar[Any] = AttentionCGSupport.NEVER
    reorder_batch_threshold: int | None = None

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> SparseMlaMetadata:
        common = common_attn_metadata
        requests = common.num_reqs
        return SparseMlaMetadata(
            tokens=common.num_actual_tokens,
            query_ends=common.query_start_loc_cpu[1 : requests + 1].to(torch.int32),
            # The operators read lengths on the host: one transfer per batch, none on a CPU.
            key_lengths=common.seq_lens[:requests].to("cpu", torch.int32),
            block_table=common.block_table_tensor[:requests],
            slots=common.slot_mapping[: common.num_actual_tokens].long(),
        )


class SparseMlaBackend(AttentionBackend):  # type: ignore[misc]
    """Paged latent cache [blocks, block_size, kv_lora + rope] with top-k attention."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "GLM5_SPARSE_MLA"

    @staticmethod
    def get_impl_cls() -> type[Any]:
        from glm5_ascend.simulator.attention import SparseMlaImpl

        return SparseMlaImpl

    @staticmethod
    def get_builder_cls() -> type[SparseMlaMetadataBuilder]:
        return SparseMlaMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        return (num_blocks, block_size, head_size)

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True


class IndexerKeyBackend(SparseMlaBackend):
    """Backend of the indexer's key cache, which has the same pages and slots."""

    @staticmethod
    def get_name() -> str:
        return "GLM5_INDEXER_KEYS"


def batch_of(layer_name: str) -> SparseMlaMetadata | None:
    """Metadata of the running forward for one cache, or None in a run without requests."""
    every = get_forward_context().attn_metadata
    if isinstance(every, list):
        every = every[0]
    if every is None:
        return None
    found = every.get(layer_name)
    assert found is None or isinstance(found, SparseMlaMetadata), layer_name
    return found
