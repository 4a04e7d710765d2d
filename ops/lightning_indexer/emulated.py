"""Lightning indexer: the AscendC kernels of ascendc/ on the emulator.

Takes F16 and bf16 with 16, 32, 48 or 64 heads of 128, int8 likewise, at most 2048 positions per row
and 2^24 keys per request. Scores are summed in F32; int8 dots are exact. A row's result depends on
its own query token and keys; in F16 and bf16, where scores lie within the rounding of F32, also on
whether several blocks share the row.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from glm5_ascend.ops.emulator.build import Kernel, Library, build
from glm5_ascend.ops.emulator.launch import Buffer, Options, inputs, launch, output, workspace
from glm5_ascend.ops.emulator.recording import cores
from glm5_ascend.ops.emulator.report import Report
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.layout import Keys, Queries

SOURCE = Path(__file__).resolve().parent / "ascendc" / "kernels.cpp"
CORES = 24  # AIC of a chip
_DIM, _MOST_KEYS = 128, 1 << 24
_HEADS = (16, 32, 48, 64)
_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.int8: "int8"}
_NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# Units of a block, below which one more block would not pay.
_LEAST_UNITS = 4
_EVERY, _PER_REQUEST, _PREFIX_SUMS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Tiles:
    """``Tiles`` of ascendc/tiling.h."""

    suffix: str
    unit: int
    step: int
    top: int

    def workspaces(self, blocks: int) -> tuple[int, int]:
        """Bytes of the products and of the lists of ``blocks`` blocks."""
        products = blocks * 4 * 128 * self.unit * self.step * 4
        samples = min(8, self.top // 64)
        place = 4 * self.top + 8 * samples + 8
        return products, blocks * 8 * place * 4


PRODUCTION = Tiles("", 128, 4, 2048)
REDUCED = Tiles("_reduced", 16, 4, 128)


class Tiling(ctypes.Structure):
    """``Tiling`` of ascendc/tiling.h."""

    _fields_ = tuple(
        (name, ctypes.c_int32)
        for name in (
            "requests",
            "heads",
            "group",
            "rows",
            "count",
            "query_form",
            "query_tokens",
            "key_form",
            "key_tokens",
            "page",
            "table_stride",
            "causal",
            "by_score",
            "weights_type",
            "query_scale_type",
            "key_scale_type",
        )
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """How :func:`select` runs the kernel."""

    tiles: Tiles = PRODUCTION
    blocks: int | None = None  # None: as many as can have work
    options: Options = field(default_factory=lambda: Options(timeout=600.0))
    sanitize: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of the operator. Scales are None except for int8."""

    query: Tensor
    key: Tensor
    weights: Tensor
    requests: Queries
    keys: Keys
    count: int
    causal: bool
    by_score: bool
    query_scale: Tensor | None = None
    key_scale: Tensor | None = None


def forward(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    requests: Queries,
    keys: Keys,
    sparse_count: int,
    *,
    causal: bool,
    sorted: bool = False,
    return_value: bool = False,
) -> tuple[Tensor, Tensor]:
    """(int32 [rows, sparse_count], F32 [0]) of query [rows, H, 128], key [flat rows, 128].

    Raises:
        Declined: what the kernel does not take (see the top of the file), or values.
        KernelHazard: the emulator found a fault of the kernel.
        BackendUnavailable: no compiler.
    """
    if return_value:
        raise Declined(
            "backend 'emulated' returns no values", "choose backend 'cpu' or 'reference'"
        )
    call = Call(query, key, weights, requests, keys, sparse_count, causal, sorted)
    return _indices(call), torch.empty(0)


def forward_quant(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_scale: Tensor,
    key_scale: Tensor,
    requests: Queries,
    keys: Keys,
    sparse_count: int,
    *,
    causal: bool,
    sorted: bool = False,
) -> Tensor:
    """int32 [rows, sparse_count] of int8 query [rows, H, 128] and key [flat rows, 128].

    Raises:
        As :func:`forward`.
    """
    scales = query_scale, key_scale
    call = Call(query, key, weights, requests, keys, sparse_count, causal, sorted, *scales)
    return _indices(call)


def _indices(call: Call) -> Tensor:
    if call.requests.rows == 0:
        _check(call, PRODUCTION)
        return torch.empty((0, call.count), dtype=torch.int32)
    return select(call)[0]


def select(call: Call, settings: Settings | None = None) -> tuple[Tensor, Report]:
    """(int32 [rows, count], the launch's report), which has no finding."""
    settings = settings or Settings()
    indices, report = run(call, settings)
    report.check("lightning_indexer")
    return indices, report


def run(call: Call, settings: Settings) -> tuple[Tensor, Report]:
    """As :func:`select`, with whatever the launch found."""
    _check(call, settings.tiles)
    tiles, blocks = settings.tiles, settings.blocks or _blocks(call, settings.tiles)
    tiling, lengths = _tiling(call)
    nothing = torch.zeros(16, dtype=torch.int32)
    indices = torch.empty((call.requests.rows, call.count), dtype=torch.int32)
    products, lists = tiles.workspaces(blocks)
    table = call.keys.block_table
    arguments: list[Buffer | Tiling] = [
        inputs("query", call.query.contiguous()),
        inputs("key", call.key.contiguous()),
        inputs("weights", call.weights.contiguous()),
        inputs("query_scale", _or(call.query_scale, nothing)),
        inputs("key_scale", _or(call.key_scale, nothing)),
        *(inputs(name, each) for name, each in lengths.items()),
        inputs("table", _or(table, nothing)),
        output("indices", indices),
        workspace("products", products),
        workspace("lists", lists),
        tiling,
    ]
    name = f"lightning_indexer_{_TYPES[call.query.dtype]}{tiles.suffix}"
    report = launch(
        library(tiles, settings.sanitize), name, arguments, blocks=blocks, options=settings.options
    )
    return indices, report


@cache
def library(tiles: Tiles, sanitize: bool = False) -> Library:
    """The compiled kernels."""
    names = [f"lightning_indexer_{each}{tiles.suffix}" for each in _TYPES.values()]
    return build(
        SOURCE,
        [Kernel(name, name, "mix12") for name in names],
        defines=["LIGHTNING_INDEXER_REDUCED"] if tiles == REDUCED else [],
        sanitize=sanitize,
    )


def _blocks(call: Call, tiles: Tiles) -> int:
    """Blocks for the most keys that the sizes of the buffers let requests have."""
    table, groups = call.keys.block_table, -(-call.requests.rows // _group(call.query.shape[1]))
    most = len(call.key) if table is None else table.shape[1] * call.keys.block_size
    return max(1, min(cores(CORES), groups * most // (tiles.unit * _LEAST_UNITS)))


def _group(heads: int) -> int:
    """``group_rows`` of ascendc/tiling.h."""
    return min(4, 128 // heads)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None or not tensor.numel() else tensor.contiguous()


def _check(call: Call, tiles: Tiles) -> None:
    """Refuse what the kernel does not take."""
    heads, dim = call.query.shape[1:]
    name = str(call.query.dtype).removeprefix("torch.")
    if call.query.dtype not in _TYPES:
        raise _declined(f"query and key in float16, bfloat16 or int8, not {name}")
    if heads not in _HEADS or dim != _DIM:
        raise _declined(f"16, 32, 48 or 64 heads of {_DIM} dims, not {heads} of {dim}")
    if call.count > tiles.top:
        raise _declined(f"a sparse_count of at most {tiles.top}, not {call.count}")
    for what, tensor in (
        ("weights", call.weights),
        ("query_dequant_scale", call.query_scale),
        ("key_dequant_scale", call.key_scale),
    ):
        if tensor is not None and tensor.dtype not in _NUMBERS:
            found = str(tensor.dtype).removeprefix("torch.")
            raise _declined(f"{what} in float32, float16 or bfloat16, not {found}")
    if max(call.keys.lengths, default=0) > _MOST_KEYS:
        raise _declined(f"at most {_MOST_KEYS} keys per request")


def _declined(needs: str) -> Declined:
    return Declined(f"backend 'emulated' needs {needs}", "choose backend 'cpu' or 'reference'")


def _tiling(call: Call) -> tuple[Tiling, dict[str, Tensor]]:
    """Sizes, and the lengths in the form in which the caller of the operator has them."""
    heads, keys = call.query.shape[1], call.keys
    starts = [] if keys.block_table is not None else keys.starts
    query_form, query_tokens, query_lengths = _lengths(call.requests.starts, call.requests.lengths)
    key_form, key_tokens, key_lengths = _lengths(starts, keys.lengths)
    types = [
        0 if tensor is None else _NUMBERS[tensor.dtype]
        for tensor in (call.weights, call.query_scale, call.key_scale)
    ]
    tiling = Tiling(
        len(keys.lengths),
        heads,
        _group(heads),
        call.requests.rows,
        call.count,
        query_form,
        query_tokens,
        key_form,
        key_tokens,
        keys.block_size if keys.block_table is not None else 0,
        keys.block_table.shape[1] if keys.block_table is not None else 0,
        call.causal,
        call.by_score,
        *types,
    )
    return tiling, {"query_lengths": query_lengths, "key_lengths": key_lengths}


def _lengths(starts: list[int], lengths: list[int]) -> tuple[int, int, Tensor]:
    """(form, distance of requests, tensor) of requests that start at ``starts``, if anywhere."""
    ends = torch.tensor(lengths, dtype=torch.int32).cumsum(0).int()
    if starts and starts == [0, *ends[:-1].tolist()]:
        return _PREFIX_SUMS, 0, ends
    distance = starts[1] - starts[0] if len(starts) > 1 else 0
    return _PER_REQUEST, distance, torch.tensor(lengths or [0], dtype=torch.int32)
