"""Search the bytes of a tensor for NaN and infinity, without torch."""

from __future__ import annotations

from typing import Any

import numpy as np

# All exponent bits set means NaN or infinity; E4M3 has no infinity, and only S.1111.111 is NaN.
_MASKS: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "F64": (np.uint64, 0x7FF0_0000_0000_0000),
    "F32": (np.uint32, 0x7F80_0000),
    "BF16": (np.uint16, 0x7F80),
    "F16": (np.uint16, 0x7C00),
    "F8_E5M2": (np.uint8, 0x7C),
    "F8_E4M3": (np.uint8, 0x7F),
    "F8_E8M0": (np.uint8, 0xFF),
}
_CHUNK_ELEMENTS = 1 << 22


def first_not_finite(data: memoryview, dtype: str) -> int | None:
    """Flat index of the first NaN or infinity of a tensor, None where all values are finite.

    Args:
        data: little-endian bytes.
        dtype: safetensors dtype string; integers are always finite.
    """
    if dtype not in _MASKS:
        return None
    kind, mask = _MASKS[dtype]
    bits = np.frombuffer(data, dtype=np.dtype(kind).newbyteorder("<"))
    for start in range(0, bits.size, _CHUNK_ELEMENTS):
        bad = (bits[start : start + _CHUNK_ELEMENTS] & kind(mask)) == mask
        if bad.any():
            return start + int(bad.argmax())
    return None
