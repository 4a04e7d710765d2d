"""The AscendC kernels (ascendc/) on the emulator; not run on an NPU.

Arithmetic as on the NPU: BF16 or F16 products summed in F32, softmax in F32 over tiles of keys with
a running maximum, weights rounded to the query's dtype before they meet the values. The functions
of the backend never split a row over blocks, so that a row's bits do not depend on its batch;
``How.least`` allows it, as the NPU does where rows are few.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from glm5_ascend.ops.emulator.build import Kernel, Library, build
from glm5_ascend.ops.emulator.launch import Options, inputs, launch, output, workspace
from glm5_ascend.ops.emulator.recording import cores, costing
from glm5_ascend.ops.emulator.report import Report
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.layout import Keys, Queries
from glm5_ascend.ops.paged_cache.rows import ROTATED

_CORES = 24  # blocks at most: an AIC with two AIV each, as on Atlas A2 and A3
LEAST = 64  # slots of a part at least, where a row is split over blocks
_WHOLE = 2**31 - 1
_HEADS = 128
_OPTIONS = Options(timeout=600.0)
_REMEDY = "choose backend 'cpu' or 'reference' (--op-backend)"


@dataclass(frozen=True)
class Tiles:
    """One instantiation of ascendc/kernels.cpp: its name, width of the latent, keys of a tile."""

    name: str
    latent: int
    tile: int
    packed: bool = False


# By dtype and latent width; the small ones are for models and tests that are small.
KERNELS = {
    (torch.bfloat16, 512): Tiles("sfa_bf16", 512, 128),
    (torch.float16, 512): Tiles("sfa_half", 512, 128),
    (torch.bfloat16, 256): Tiles("sfa_small_bf16", 256, 32),
    (torch.float16, 256): Tiles("sfa_small_half", 256, 32),
}
PACKED_KERNEL = Tiles("sfa_packed", 512, 128, packed=True)
SMALL_PACKED_KERNEL = Tiles("sfa_small_packed", 512, 32, packed=True)

_NUMBERS = (
    "rows", "heads", "slots", "sparse_block", "requests", "causal", "page_size", "table_stride",
    "width", "query_row", "query_head", "rope_row", "rope_head", "key_row", "key_rope_row",
    "key_rows",
)  # fmt: skip
_SPLIT = ("group", "groups", "parts", "part_slots", "tasks", "blocks")


class Tiling(ctypes.Structure):
    """``sfa::Tiling`` of ascendc/tiling.h, which explains the fields."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in _NUMBERS),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in _SPLIT),
    ]


@dataclass(frozen=True)
class How:
    """How to launch: options of the emulator, blocks at most, slots of a part at least."""

    options: Options = _OPTIONS
    cores: int = _CORES
    least: int = _WHOLE
    sanitize: bool = False


def _usual() -> How:
    """Rows stay whole, except where time is modelled: then they split as on the NPU."""
    return How(least=LEAST if costing() else _WHOLE, cores=cores(_CORES))


def forward(
    query: list[Tensor],
    key: list[Tensor],
    value: Tensor,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out [rows, H, L], max F32 [rows, H], sum F32 [rows, H]), arguments as in reference.py.

    Raises:
        Declined: sizes, a dtype or a scale that the kernel does not take, or a value other
            than the key.
        KernelHazard: the emulator found something.
        BackendUnavailable: the kernels cannot be compiled here.
    """
    kind = KERNELS.get((query[0].dtype, query[0].shape[-1]))
    if kind is None:
        raise Declined(
            "backend 'emulated' computes attention in bfloat16 or float16 over a latent of 512 or "
            f"256, not in {_name(query[0].dtype)} over {query[0].shape[-1]}",
            _REMEDY,
        )
    if value.data_ptr() != key[0].data_ptr() or value.shape != key[0].shape:
        raise Declined("backend 'emulated' takes one latent as key and value", _REMEDY)
    if len(query) > 1 and query[1].shape[-1] != ROTATED:
        raise Declined(
            f"backend 'emulated' takes a rotated part of {ROTATED}, not {query[1].shape[-1]}",
            _REMEDY,
        )
    results = checked(kind, query, key, indices, scale, block, requests, keys, causal=causal)
    return results[:3]


def forward_kv_quant(
    query: Tensor,
    packed: Tensor,
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    *,
    causal: bool,
) -> Tensor:
    """out [rows, H, 512] of query [rows, H, 576] over int8 rows [flat rows, 656].

    Raises:
        Declined, KernelHazard, BackendUnavailable: as :func:`forward`.
    """
    if query.dtype != torch.bfloat16:
        raise Declined(
            "backend 'emulated' attends over packed rows with a bfloat16 query, not "
            f"{_name(query.dtype)}",
            _REMEDY,
        )
    return checked(
        PACKED_KERNEL, [query], [packed], indices, scale, block, requests, keys, causal=causal
    )[0]


def checked(
    kind: Tiles,
    query: list[Tensor],
    key: list[Tensor],
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    *,
    causal: bool,
    how: How | None = None,
) -> tuple[Tensor, Tensor, Tensor, Report]:
    """(out, max, sum, report) of one launch of ``kind``; a launch with findings has no results.

    Raises:
        Declined, KernelHazard, BackendUnavailable: as :func:`forward`.
    """
    results = unchecked(
        kind, query, key, indices, scale, block, requests, keys, causal=causal, how=how or _usual()
    )
    results[3].check(kind.name)
    return results


def unchecked(
    kind: Tiles,
    query: list[Tensor],
    key: list[Tensor],
    indices: Tensor,
    scale: float,
    block: int,
    requests: Queries,
    keys: Keys,
    *,
    causal: bool,
    how: How,
) -> tuple[Tensor, Tensor, Tensor, Report]:
    """As :func:`checked`, whatever the report holds."""
    rows, heads = query[0].shape[:2]
    if not 1 <= heads <= _HEADS:
        raise Declined(f"backend 'emulated' takes 1 to {_HEADS} heads, not {heads}", _REMEDY)
    query = [q.contiguous() for q in query]
    out = query[0].new_empty(rows, heads, kind.latent)
    peak = query[0].new_empty(rows, heads, dtype=torch.float32)
    total = torch.empty_like(peak)
    table = keys.block_table
    library = _library(sanitize=how.sanitize)
    tiling = _tiling(query, key, indices, kind, scale, block)
    tiling.requests, tiling.causal = len(keys.lengths), causal
    tiling.page_size = 0 if table is None else keys.block_size
    tiling.table_stride = 0 if table is None else table.shape[1]
    room = _split(library, tiling, how, kind)
    rope_query = query[1] if len(query) > 1 else _nothing(query[0])
    rope_key = _memory(key[1]) if len(key) > 1 else _nothing(key[0])
    report = launch(
        library,
        kind.name,
        [
            inputs("query", _some(query[0])),
            inputs("query_rope", _some(rope_query)),
            inputs("key", _memory(key[0])),
            inputs("key_rope", rope_key),
            inputs("indices", _some(indices.contiguous())),
            inputs("requests", _requests(requests, keys)),
            inputs(
                "block_table", _some(_nothing(indices) if table is None else table.contiguous())
            ),
            output("out", out),
            output("softmax_max", peak),
            output("softmax_sum", total),
            workspace("workspace", room),
            tiling,
        ],
        blocks=tiling.blocks,
        options=how.options,
    )
    return out, peak, total, report


def _tiling(
    query: list[Tensor],
    key: list[Tensor],
    indices: Tensor,
    kind: Tiles,
    scale: float,
    block: int,
) -> Tiling:
    width = query[0].shape[-1]
    return Tiling(
        rows=query[0].shape[0],
        heads=query[0].shape[1],
        slots=indices.shape[1],
        sparse_block=block,
        width=kind.latent + ROTATED if kind.packed else sum(q.shape[-1] for q in query),
        query_row=query[0].shape[1] * width,
        query_head=width,
        rope_row=query[0].shape[1] * (width if kind.packed else ROTATED),
        rope_head=width if kind.packed else ROTATED,
        key_row=_row(key[0]),
        key_rope_row=_row(key[-1]),
        key_rows=key[0].shape[0],
        scale=scale,
    )


def _split(library: Library, tiling: Tiling, how: How, kind: Tiles) -> int:
    """Fill the split and return the bytes of workspace."""
    split = library.handle.sfa_split
    split.restype = ctypes.c_uint64
    return int(
        split(ctypes.byref(tiling), how.cores, how.least, kind.tile, kind.latent, kind.packed)
    )


@cache
def _library(*, sanitize: bool) -> Library:
    """All kernels; only the small ones where they are checked for undefined behaviour."""
    kinds = (*KERNELS.values(), PACKED_KERNEL, SMALL_PACKED_KERNEL)
    names = [kind.name for kind in kinds if not sanitize or "small" in kind.name]
    source = Path(__file__).resolve().parent / "ascendc" / "kernels.cpp"
    return build(
        source,
        [Kernel(name, name, "mix12") for name in names],
        defines=["SFA_SMALL"] if sanitize else [],
        sanitize=sanitize,
    )


def _requests(requests: Queries, keys: Keys) -> Tensor:
    """int32 [requests, 4]: first query row, query rows, first key row, keys."""
    first_keys = keys.starts or [0] * len(keys.lengths)
    columns = (requests.starts, requests.lengths, first_keys, keys.lengths)
    return _some(torch.tensor(list(zip(*columns, strict=True)), dtype=torch.int32))


def _row(rows: Tensor) -> int:
    return rows.stride(0) if rows.shape[0] > 1 else rows.shape[-1]


def _memory(rows: Tensor) -> Tensor:
    """What lies between the first and the last number of rows [n, width]."""
    if not rows.numel():
        return _nothing(rows)
    return rows.as_strided(((rows.shape[0] - 1) * _row(rows) + rows.shape[-1],), (1,))


def _some(tensor: Tensor) -> Tensor:
    return tensor if tensor.numel() else _nothing(tensor)


def _nothing(like: Tensor) -> Tensor:
    """A stand-in for an argument that the kernel does not look at."""
    return torch.zeros(16, dtype=like.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
