"""Public entry of the paged cache writer."""

from __future__ import annotations

from torch import Tensor

from glm5_ascend.ops.dispatch import select


def write_paged_rows(
    cache: Tensor, rows: Tensor, slot_mapping: Tensor, *, backend: str = "auto"
) -> None:
    """Write ``rows[t]`` into slot ``slot_mapping[t]`` of ``cache``, in place.

    Args:
        cache: [blocks, block_size, width], any strides; slot s is block s // block_size, row
            s % block_size.
        rows: [T, width]; converted to the cache's dtype.
        slot_mapping: int64 [T]; slot -1 (padding) is skipped.

    Raises:
        ValueError: shapes that contradict each other, or a slot outside the cache.
        BackendUnavailable: the named backend cannot run here.
    """
    if cache.ndim != 3 or rows.shape != (slot_mapping.shape[0], cache.shape[2]):
        raise ValueError(
            f"rows {tuple(rows.shape)} and slots {tuple(slot_mapping.shape)} do not fit a cache "
            f"of {tuple(cache.shape)}"
        )
    match select("paged_cache", backend, cache):
        case "reference":
            from glm5_ascend.ops.paged_cache.reference import forward

            forward(cache, rows, slot_mapping)
        case other:
            raise NotImplementedError(other)
