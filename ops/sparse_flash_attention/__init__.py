"""Sparse flash attention: absorbed MLA over selected rows of a latent cache."""

from glm5_ascend.ops.sparse_flash_attention.api import (
    kv_quant_sparse_flash_attention,
    sparse_flash_attention,
)

__all__ = ["kv_quant_sparse_flash_attention", "sparse_flash_attention"]
