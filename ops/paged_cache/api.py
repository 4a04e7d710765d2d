"""Public functions of the paged caches."""

from __future__ import annotations

from torch import Tensor

from glm5_ascend.ops.paged_cache import operator


def write_paged_rows(
    cache: Tensor, rows: Tensor, slot_mapping: Tensor, *, backend: str = "auto"
) -> None:
    """Write ``rows[t]`` into slot ``slot_mapping[t]`` of ``cache``, in place.

    Args:
        cache: [blocks, block_size, width]; slot s is block s // block_size, row s % block_size.
            Its rows must be dense and lie at one distance, which may exceed width: columns of a
            wider cache are allowed.
        rows: [T, width], rows dense; a float dtype is converted to the cache's.
        slot_mapping: int32 or int64 [T]; slot -1 (padding) is skipped. Two rows in one slot:
            which one stays is undefined.

    Raises:
        ArgumentError: shapes, dtypes, strides or devices that contradict the above, or a slot
            outside the cache (nothing is written then).
        BackendUnavailable: the named backend cannot run here.
    """
    operator.WRITE(cache, rows, slot_mapping, backend=backend)


def write_kv_rows(
    cache: Tensor,
    latent: Tensor,
    key_rope: Tensor,
    slot_mapping: Tensor,
    *,
    backend: str = "auto",
) -> None:
    """Quantise latents and write packed 656-byte rows into ``cache``, in place.

    Row: 512 int8 codes | 64 BF16 rotated dims | 4 F32 scales, one per 128 codes; scale =
    max|x| / 127, code = x / scale rounded half to even, in F32. A tile of zeros has scale 0 and
    codes 0; a tile with an infinity or NaN has a scale that is not finite and codes 0.

    Args:
        cache: int8 or uint8 [blocks, block_size, 656], strides as of ``write_paged_rows``.
        latent: float [T, 512], rows dense.
        key_rope: float [T, 64], rows dense; rounded to BF16.
        slot_mapping: as of ``write_paged_rows``.

    Raises:
        ArgumentError: as ``write_paged_rows``.
        BackendUnavailable: the named backend cannot run here.

    Format of the KV rows of torch_npu.npu_kv_quant_sparse_flash_attention.
    """
    operator.WRITE_KV(cache, latent, key_rope, slot_mapping, backend=backend)


def read_kv_rows(
    cache: Tensor, slot_mapping: Tensor, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """(latent BF16 [T, 512], key_rope BF16 [T, 64]) of packed rows; zeros for slot -1.

    latent = code * scale in F32, rounded to BF16: the values that
    ``kv_quant_sparse_flash_attention`` computes with.

    Args:
        cache: int8 or uint8 [blocks, block_size, 656], as ``write_kv_rows`` left it.
        slot_mapping: int32 or int64 [T].

    Raises:
        ArgumentError, BackendUnavailable: as ``write_kv_rows``.
    """
    latent, key_rope = operator.READ_KV(cache, slot_mapping, backend=backend)
    return latent, key_rope
