"""Random images of UB."""

from __future__ import annotations

import numpy as np

from tests.ops.emulator.vector.program import TYPES, WIDTH, Bytes

_EDGES = (0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 127.5, -128.5, 255.5, 1.0, -1.0, 65504.0, -65504.0)
_WIDE = (
    3.4e38,
    -3.4e38,
    65520.0,
    65519.0,
    -65536.0,
    2147483648.0,
    -2147483904.0,
    1e-42,
    6e-8,
    2.9e-8,
)
_SPECIAL = (np.inf, -np.inf, np.nan)


def numbers(rng: np.random.Generator, kind: str, count: int, special: bool = True) -> np.ndarray:
    """``count`` elements of many sizes with ties and edges; NaN and infinities on request."""
    if kind not in ("half", "float", "bf16"):
        if kind == "int4":
            return rng.integers(0, 256, count).astype(np.uint8)
        info = np.iinfo(TYPES[kind])
        small = rng.integers(max(info.min, -40), min(info.max, 40), count, endpoint=True)
        large = rng.integers(info.min, info.max, count, endpoint=True, dtype=TYPES[kind])
        return np.where(rng.random(count) < 0.5, small.astype(TYPES[kind]), large)
    with np.errstate(over="ignore"):
        values = rng.standard_normal(count) * np.exp2(rng.integers(-12, 13, count))
        ties = rng.integers(-600, 600, count) / 2
        values = np.where(rng.random(count) < 0.2, ties, values)
        edges = _EDGES + (_WIDE if kind != "half" else ()) + (_SPECIAL if special else ())
        values = np.where(rng.random(count) < 0.1, rng.choice(np.array(edges), count), values)
        if kind == "half":
            return values.astype(np.float16)
        single = values.astype(np.float32)
        return single if kind == "float" else (single.view(np.uint32) >> 16).astype(np.uint16)


def image(rng: np.random.Generator, kinds: tuple[str, ...], special: bool = True) -> Bytes:
    """8 KiB of elements of each type, one after the other: dst, src0, src1, extra."""
    parts = []
    for kind in kinds:
        width = max(WIDTH[kind], 8)
        parts.append(numbers(rng, kind, 0x2000 * 8 // width, special).view(np.uint8))
    return np.concatenate(parts)
