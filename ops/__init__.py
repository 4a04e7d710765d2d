"""Operators of GLM-5, one folder each, with every backend side by side."""

from glm5_ascend.ops.dispatch import availability
from glm5_ascend.ops.hadamard_quant import hadamard_quant
from glm5_ascend.ops.lightning_indexer import lightning_indexer, lightning_indexer_quant
from glm5_ascend.ops.matmul import int_matmul, linear_rows
from glm5_ascend.ops.mlapo import mlapo
from glm5_ascend.ops.moe import moe_experts, moe_gating, pack_int4, unpack_int4
from glm5_ascend.ops.norm_rope import layer_norm, rms_norm, rotary_interleaved, rotary_table
from glm5_ascend.ops.paged_cache import read_kv_rows, write_kv_rows, write_paged_rows
from glm5_ascend.ops.quant_linear import dynamic_quant, linear_w8a8_dynamic, linear_w8a8_static
from glm5_ascend.ops.sparse_flash_attention import (
    kv_quant_sparse_flash_attention,
    sparse_flash_attention,
)

__all__ = [
    "availability",
    "dynamic_quant",
    "hadamard_quant",
    "int_matmul",
    "kv_quant_sparse_flash_attention",
    "layer_norm",
    "lightning_indexer",
    "lightning_indexer_quant",
    "linear_rows",
    "linear_w8a8_dynamic",
    "linear_w8a8_static",
    "mlapo",
    "moe_experts",
    "moe_gating",
    "pack_int4",
    "read_kv_rows",
    "rms_norm",
    "rotary_interleaved",
    "rotary_table",
    "sparse_flash_attention",
    "unpack_int4",
    "write_kv_rows",
    "write_paged_rows",
]
