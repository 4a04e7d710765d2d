"""Tiles of the Triton kernels of mlapo, by tokens and bytes of a number. Chosen without a GPU."""

from __future__ import annotations

from typing import NamedTuple

PART = 1024  # terms of the first product that one program adds where it is split
QUANTISED = 8192  # numbers of a row that are quantised at once


class Tiles(NamedTuple):
    """For up to ``most`` tokens.

    columns, tokens, terms: of a tile of a projection; latents, nope: of the columns and terms of a
    tile of W_UK. split: the first product.
    fuse_dynamic, fuse_static: most tokens that the first product quantises itself.
    overlap: kernels start before the one in front of them has ended.
    """

    most: int
    columns: int
    tokens: int
    terms: int
    latents: int
    nope: int
    warps: int
    stages: int
    split: bool = True
    fuse_dynamic: int = 4
    fuse_static: int = 16
    overlap: bool = True


# A short call reads every weight once: 64 columns give a program for every second of the 132
# processors at least, with 64 KiB on their way to each. A long one wants large products.
_MANY = {"split": False, "overlap": False}
TABLE = {
    1: (
        Tiles(16, 64, 16, 256, 64, 64, 4, 4),
        Tiles(64, 64, 64, 256, 64, 64, 4, 3),
        Tiles(128, 64, 128, 128, 64, 64, 4, 4),
        Tiles(1 << 62, 128, 128, 128, 128, 64, 8, 4, **_MANY),
    ),
    2: (
        Tiles(16, 64, 16, 128, 64, 64, 4, 4),
        Tiles(64, 64, 64, 128, 64, 64, 4, 3),
        Tiles(128, 64, 128, 64, 64, 64, 4, 4),
        Tiles(1 << 62, 128, 128, 64, 128, 64, 8, 4, **_MANY),
    ),
    # Products of F32 are not made by tensor cores.
    4: (
        Tiles(128, 32, 16, 32, 32, 32, 4, 2),
        Tiles(1 << 62, 64, 64, 32, 64, 32, 4, 2, **_MANY),
    ),
}


def choose(tokens: int, size: int) -> Tiles:
    """Tiles for ``tokens`` and weights of ``size`` bytes per number."""
    return next(tiles for tiles in TABLE[size] if tokens <= tiles.most)
