"""Paged caches: write rows into slots."""

from glm5_ascend.ops.paged_cache.api import write_paged_rows

__all__ = ["write_paged_rows"]
