"""Sparse flash attention: absorbed MLA over selected rows of a latent cache."""

from glm5_ascend.ops.sparse_flash_attention.api import sparse_flash_attention

__all__ = ["sparse_flash_attention"]
