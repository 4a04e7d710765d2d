"""Paged caches: write rows into slots, pack and unpack quantised rows."""

from glm5_ascend.ops.paged_cache.api import read_kv_rows, write_kv_rows, write_paged_rows

__all__ = ["read_kv_rows", "write_kv_rows", "write_paged_rows"]
