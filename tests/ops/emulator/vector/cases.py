"""Random forms of instructions: counts, masks, repeats and strides."""

from __future__ import annotations

import numpy as np

from tests.ops.emulator.vector.program import BITS, COUNT, FIRST

Fields = dict[str, object]


def forms(rng: np.random.Generator, width: int, count: int) -> list[Fields]:
    """``count`` random forms for elements of ``width`` bits, which stay inside 8 KiB."""
    return [_form(rng, width, i) for i in range(count)]


def _form(rng: np.random.Generator, width: int, i: int) -> Fields:
    lanes = 2048 // width
    if i % 4 == 0:
        return {"form": COUNT, "count": int(rng.integers(1, 8 * lanes, endpoint=True))}
    blocks = [int(rng.integers(1, 4))] + [int(v) for v in rng.integers(0, 4, 2)]
    repeats = [int(v) for v in rng.integers(0, 24, 3)]
    if i % 3 == 0:
        blocks, repeats = [1, 1, 1], [8 * width // width] * 3
    fields: Fields = {
        "repeats": int(rng.integers(1, 9)),
        "stride": (*blocks, *repeats),
    }
    if i % 4 == 1:
        full = rng.random() < 0.3
        return fields | {
            "form": FIRST,
            "mask": (lanes if full else int(rng.integers(1, lanes + 1)), 0),
        }
    words = [int(v) for v in rng.integers(0, 2**63, 2)]
    words[0] |= 1
    if lanes < 64:
        words[0] &= 2**lanes - 1
    return fields | {"form": BITS, "mask": (words[0], words[1] if lanes > 64 else 0)}
