"""One small valid call of every operator, and calls that its contract refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glm5_ascend import ops

BLOCKS, SIZE, TOKENS = 9, 16, 4


def _ints(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def _codes(*shape: int) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def _where(word: str) -> dict[str, Any]:
    """Two requests: one query token over 20 keys, three over 70."""
    return {
        "actual_seq_lengths_query": _ints(1, 4),
        f"actual_seq_lengths_{word}": _ints(20, 70),
        "block_table": _ints(4, 2, 0, 0, 0, 8, 7, 6, 5, 3).view(2, 5),
        "layout_query": "TND",
        f"layout_{word}": "PA_BSND",
    }


def indexer() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "query": torch.randn(TOKENS, 16, 32),
        "key": torch.randn(BLOCKS, SIZE, 1, 32),
        "weights": torch.randn(TOKENS, 16),
        "sparse_count": 8,
        **_where("key"),
    }


def indexer_quant() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "query": _codes(TOKENS, 16, 32),
        "key": _codes(BLOCKS, SIZE, 1, 32),
        "weights": torch.randn(TOKENS, 16).half(),
        "query_dequant_scale": torch.rand(TOKENS, 16),
        "key_dequant_scale": torch.rand(BLOCKS, SIZE, 1),
        "query_quant_mode": 0,
        "key_quant_mode": 0,
        "sparse_count": 8,
        **_where("key"),
    }


def attention() -> dict[str, Any]:
    torch.manual_seed(0)
    cache = torch.randn(BLOCKS, SIZE, 1, 40)
    return {
        "query": torch.randn(TOKENS, 2, 32),
        "key": cache[..., :32],
        "value": None,
        "sparse_indices": _ints(19, 3, 0, -1).repeat(TOKENS, 1)[:, None],
        "scale_value": 0.2,
        "query_rope": torch.randn(TOKENS, 2, 8),
        "key_rope": cache[..., 32:],
        "attention_mode": 2,
        **_where("kv"),
    }


def kv_attention() -> dict[str, Any]:
    torch.manual_seed(0)
    cache = torch.zeros(BLOCKS, SIZE, 656, dtype=torch.int8)
    slots = torch.arange(BLOCKS * SIZE)
    ops.write_kv_rows(
        cache, torch.randn(len(slots), 512), torch.randn(len(slots), 64), slots, backend="reference"
    )
    cache = cache.unsqueeze(2)
    return {
        "query": torch.randn(TOKENS, 2, 576).bfloat16(),
        "key": cache,
        "value": cache,
        "sparse_indices": _ints(19, 3, 0, -1).repeat(TOKENS, 1)[:, None],
        "scale_value": 0.05,
        "key_quant_mode": 2,
        "value_quant_mode": 2,
        "attention_mode": 2,
        **_where("kv"),
    }


def hadamard() -> dict[str, Any]:
    return {"x": torch.randn(5, 3, 128)}


def write() -> dict[str, Any]:
    return {
        "cache": torch.zeros(BLOCKS, SIZE, 8),
        "rows": torch.randn(3, 8),
        "slot_mapping": _ints(143, -1, 0, dtype=torch.int64),
    }


def write_kv() -> dict[str, Any]:
    return {
        "cache": torch.zeros(BLOCKS, SIZE, 656, dtype=torch.int8),
        "latent": torch.randn(3, 512),
        "key_rope": torch.randn(3, 64),
        "slot_mapping": _ints(143, -1, 0, dtype=torch.int64),
    }


def read_kv() -> dict[str, Any]:
    cache = torch.zeros(BLOCKS, SIZE, 656, dtype=torch.int8)
    return {"cache": cache, "slot_mapping": _ints(143, -1, 0)}


@dataclass(frozen=True)
class Operator:
    """Name below ``torch.ops.glm5_ascend``, public function, valid arguments."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[], dict[str, Any]]

    def __str__(self) -> str:
        return self.name

    @property
    def overload(self) -> Any:
        return getattr(torch.ops.glm5_ascend, self.name).default


OPERATORS = (
    Operator("lightning_indexer", ops.lightning_indexer, indexer),
    Operator("lightning_indexer_quant", ops.lightning_indexer_quant, indexer_quant),
    Operator("sparse_flash_attention", ops.sparse_flash_attention, attention),
    Operator("kv_quant_sparse_flash_attention", ops.kv_quant_sparse_flash_attention, kv_attention),
    Operator("hadamard_quant", ops.hadamard_quant, hadamard),
    Operator("write_paged_rows", ops.write_paged_rows, write),
    Operator("write_kv_rows", ops.write_kv_rows, write_kv),
    Operator("read_kv_rows", ops.read_kv_rows, read_kv),
)


@dataclass(frozen=True)
class Bad:
    """Arguments that make a valid call one that must be refused with ``message``.

    ``values`` faults show in the values of a tensor only, so that tracing cannot see them.
    """

    operator: str
    label: str
    message: str
    change: Callable[[dict[str, Any]], dict[str, Any]]
    values: bool = False

    def __str__(self) -> str:
        return f"{self.operator}-{self.label}"


def _gaps(tensor: Tensor) -> Tensor:
    """The same values with gaps between the elements of the last axis."""
    return torch.stack((tensor, tensor), -1)[..., 0]


def _scattered(tensor: Tensor) -> Tensor:
    """The same shape, with a gap after each block."""
    return torch.cat((tensor, tensor[:, :1]), 1)[:, :-1]


def _of_layout(operator: str, word: str) -> list[Bad]:
    """What the operators with queries, keys and lengths have in common."""
    length, layout = f"actual_seq_lengths_{word}", f"layout_{word}"
    table = _where(word)["block_table"]

    def bad(label: str, message: str, values: bool = False, **change: Any) -> Bad:
        return Bad(operator, label, message, lambda _: change, values)

    def of(name: str, label: str, message: str, make: Callable[[Tensor], Tensor]) -> Bad:
        return Bad(operator, f"{name}_{label}", message, lambda given: {name: make(given[name])})

    outside = table.clone()
    outside[1, 1] = BLOCKS
    negative = table.clone()
    negative[0, 1] = -1
    sums = "must be prefix sums"
    return [
        bad("query_layout", "layout_query must be one of BSND, TND, not 'SBH'", layout_query="SBH"),
        bad("key_layout", f"{layout} must be one of", **{layout: "BNSD"}),
        bad("query_rank", "a BSND query must have 4 axes", layout_query="BSND"),
        bad("key_rank", "a TND key must have 3 axes", **{layout: "TND"}),
        bad("no_query_lengths", "needs actual_seq_lengths_query", actual_seq_lengths_query=None),
        bad("falling", sums, True, actual_seq_lengths_query=_ints(4, 3)),
        bad("per_request", sums, True, actual_seq_lengths_query=_ints(3, 1)),
        bad("too_many", sums, True, actual_seq_lengths_query=_ints(3, 99)),
        bad("offsets", "same number of requests", actual_seq_lengths_query=_ints(0, 1, 4)),
        bad(
            "float_lengths", "must be int32 or int64", actual_seq_lengths_query=torch.tensor([1.0])
        ),
        bad("no_key_lengths", f"needs {length}", **{length: None}),
        bad("too_long", "lengths of 0 to 80, one per request", True, **{length: _ints(20, 81)}),
        bad("negative", "lengths of 0 to 80, one per request", True, **{length: _ints(20, -1)}),
        bad("fewer", "name the same requests", **{length: _ints(20)}),
        bad("no_table", "a PA_BSND key needs block_table", block_table=None),
        bad("table_rank", "block_table must be int32", block_table=table[0]),
        bad("table_dtype", "block_table must be int32", block_table=table.long()),
        bad("table_too_large", f"names block {BLOCKS}", True, block_table=outside),
        bad("table_negative", "names block -1", True, block_table=negative),
        bad("superfluous_table", "goes with the layout PA_BSND only", **{layout: "BSND"}),
        bad("table_gaps", "last axis of block_table", block_table=_gaps(table)),
        bad("sparse_mode", "sparse_mode must be 0 or 3, not 1", sparse_mode=1),
        bad("window", r"next_tokens must be 2\*\*63 - 1", next_tokens=0),
        of("key", "page_size", "multiple of 16 up to 1024, not 8", lambda k: k[:, :8].contiguous()),
        of("key", "large_page", "not 1040", lambda k: k.repeat(1, 65, 1, 1)),
        of("key", "blocks_apart", "rows at one distance", _scattered),
        of("query", "gaps", "last axis of query must be dense", _gaps),
        of("key", "gaps", "last axis of key must be dense", _gaps),
        of("key", "other_device", "must be on the device of query", lambda k: k.to("meta")),
        of("key", "two_heads", "key must have", lambda k: k.repeat(1, 1, 2, 1)),
    ]


def _bad(
    operator: str, name: str, label: str, message: str, make: Any, values: bool = False
) -> Bad:
    """``make`` maps the valid argument to the bad one, or is the bad one."""

    def change(given: dict[str, Any]) -> dict[str, Any]:
        return {name: make(given[name]) if callable(make) else make}

    return Bad(operator, f"{name}_{label}", message, change, values)


def _indices(value: int) -> Callable[[Tensor], Tensor]:
    def change(indices: Tensor) -> Tensor:
        indices = indices.clone()
        indices[0, 0, 1] = value
        return indices

    return change


LI, LIQ, SFA, KV = (operator.name for operator in OPERATORS[:4])
HADAMARD, WRITE, WRITE_KV, READ_KV = (operator.name for operator in OPERATORS[4:])

BAD = (
    *(bad for operator in (LI, LIQ) for bad in _of_layout(operator, "key")),
    *(bad for operator in (SFA, KV) for bad in _of_layout(operator, "kv")),
    _bad(LI, "sparse_count", "zero", "sparse_count must be positive", 0),
    _bad(LI, "weights", "shape", r"weights must have shape \[4, 16\]", torch.zeros(4, 15)),
    _bad(LI, "weights", "gaps", "last axis of weights", _gaps),
    _bad(LI, "weights", "dtype", "weights must be float32", lambda w: w.half()),
    _bad(LI, "key", "dtype", "key must be float32, not bfloat16", lambda k: k.bfloat16()),
    _bad(LI, "query", "dtype", "query must be float16 or", lambda q: q.int()),
    _bad(LIQ, "query", "dtype", "query must be int8", lambda q: q.float()),
    _bad(LIQ, "query_quant_mode", "other", "query_quant_mode must be 0", 1),
    _bad(LIQ, "query_dtype", "given", "query_dtype must be None", 1),
    _bad(LIQ, "query_dequant_scale", "shape", "query_dequant_scale must have", lambda s: s[:, :1]),
    _bad(LIQ, "key_dequant_scale", "shape", "key_dequant_scale must have", lambda s: s[..., 0]),
    _bad(LIQ, "key_dequant_scale", "dtype", "key_dequant_scale must be", lambda s: s.bfloat16()),
    *(
        bad
        for operator in (SFA, KV)
        for bad in (
            _bad(operator, "attention_mode", "other", "attention_mode must be 2", 0),
            _bad(operator, "sparse_block_size", "zero", "sparse_block_size must be", 0),
            _bad(operator, "sparse_indices", "dtype", "must be int32", lambda i: i.long()),
            _bad(operator, "sparse_indices", "shape", "must have shape", lambda i: i[:3]),
            _bad(operator, "sparse_indices", "beyond", "not 20", _indices(20), True),
            _bad(operator, "sparse_indices", "below", "not -2", _indices(-2), True),
        )
    ),
    _bad(SFA, "query_rope", "missing", "go together", None),
    _bad(SFA, "query_rope", "shape", "query_rope must have shape", lambda q: q[:, :1]),
    _bad(SFA, "key_rope", "dtype", "key_rope must be float32", lambda k: k.half()),
    _bad(SFA, "value", "shape", "value must have shape", torch.zeros(BLOCKS, 8, 1, 32)),
    _bad(SFA, "sinks", "given", "sinks must be None", torch.zeros(2)),
    _bad(KV, "query", "width", "query must have shape", lambda q: q[..., :512]),
    _bad(KV, "key", "dtype", "key must be int8 or uint8", lambda k: k.short()),
    _bad(KV, "value", "other", "value must be key", lambda v: v + 1, True),
    _bad(KV, "key_quant_mode", "other", "key_quant_mode must be 2", 1),
    _bad(KV, "tile_size", "other", "tile_size must be 128", 64),
    _bad(KV, "key_dequant_scale", "given", "must be None", torch.ones(1)),
    _bad(HADAMARD, "x", "width", "two or more axes", torch.zeros(3, 64)),
    _bad(HADAMARD, "x", "rank", "two or more axes", torch.zeros(128)),
    _bad(HADAMARD, "x", "gaps", "last axis of x", _gaps),
    _bad(HADAMARD, "x", "dtype", "x must be", torch.zeros(3, 128, dtype=torch.int8)),
    *(
        bad
        for operator in (WRITE, WRITE_KV, READ_KV)
        for bad in (
            _bad(operator, "slot_mapping", "large", "slot 144 does", _ints(144, 0, 1), True),
            _bad(operator, "slot_mapping", "low", "slot -2 does", _ints(-2, 0, 1), True),
            _bad(operator, "slot_mapping", "dtype", "must be int32 or int64", torch.zeros(3)),
            _bad(operator, "cache", "rank", "cache must be", lambda c: c.unsqueeze(2)),
            _bad(operator, "cache", "apart", "rows at one distance", _scattered),
            _bad(operator, "cache", "gaps", "last axis of cache", _gaps),
        )
    ),
    _bad(WRITE, "rows", "width", r"rows must have shape \[3, 8\]", torch.zeros(3, 7)),
    _bad(WRITE, "rows", "count", r"rows must have shape \[3, 8\]", torch.zeros(2, 8)),
    _bad(WRITE, "rows", "dtype", "both float", torch.zeros(3, 8, dtype=torch.int32)),
    _bad(WRITE, "rows", "gaps", "last axis of rows", _gaps),
    _bad(WRITE_KV, "latent", "shape", "latent must have shape", lambda x: x[:, :128]),
    _bad(WRITE_KV, "key_rope", "dtype", "key_rope must be", lambda x: x.int()),
    _bad(READ_KV, "cache", "width", "cache must be int8 or uint8", lambda c: c[..., :640]),
)  # fmt: skip
