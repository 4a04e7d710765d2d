"""How calls are cut into programs: ``tuning.toml``, chosen by shape, never tuned while serving."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import torch

from glm5_ascend.errors import Glm5Error

# Names of numbers in the table.
NUMBERS = {
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "f32",
    torch.int8: "int8",
    torch.float8_e4m3fn: "e4m3",
}
_MOST = 1 << 62


class Attention(NamedTuple):
    """A row of attention; tuning.toml says what the fields mean."""

    form: str
    tile: int
    warps: int
    stages: int
    parts: int
    part: int = 1
    unite: int = 1
    share: int = 0


class Indexer(NamedTuple):
    """A row of the indexer; tuning.toml says what the fields mean."""

    tile: int
    part: int
    warps: int
    stages: int
    samples: int = 0
    room: int = 0


class TableError(Glm5Error):
    """The table of a package that someone changed."""


@cache
def _table(name: str) -> tuple[dict[str, Any], ...]:
    text = files("glm5_ascend.ops.triton").joinpath("tuning.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)[name])


def _row(name: str, number: str, **shape: int) -> dict[str, Any]:
    """The first row that fits, without what it is chosen by."""
    for row in _table(name):
        ranges = {key: row.get(key, (0, _MOST)) for key in shape}
        if number in row["rows"] and all(
            low <= shape[key] <= high for key, (low, high) in ranges.items()
        ):
            return {key: row[key] for key in row.keys() - shape.keys() - {"rows"}}
    raise TableError(
        f"tuning.toml has no row of {name} for {number}, {shape}", "install glm5-ascend again"
    )


@cache
def attention(number: torch.dtype, heads: int, query_tokens: int) -> Attention:
    """How to attend to rows of ``number`` with ``heads`` from a request of ``query_tokens``."""
    row = _row("attention", NUMBERS[number], heads=heads, query_tokens=query_tokens)
    return Attention(**row)


@cache
def indexer(number: torch.dtype, heads: int, keys: int) -> Indexer:
    """How to find the best of up to ``keys`` keys of ``number`` with ``heads``."""
    return Indexer(**_row("indexer", NUMBERS[number], heads=heads, keys=keys))
