"""FlashMLA beside the project's sparse attention."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tools.gpu_bench.attention import LATENT, PACKED, SCALE, WIDTH, Problem, Set
from tools.gpu_bench.draw import PAGE
from tools.gpu_bench.entry import Absent, Contestant, Ready
from tools.gpu_bench.peers import Peers

# Query heads that its kernels compute; fewer are padded.
_HEADS = 64


def contestants(problem: Problem, peers: Peers) -> Iterator[Contestant]:
    """FlashMLA: decode over packed FP8 rows, or prefill over BF16 rows."""
    shape = problem.shape
    if shape.queries > 1 and shape.dtype == "bf16":
        yield Contestant(
            "FlashMLA sparse prefill", "peer", "bf16", _HEADS, lambda: _prefill(problem, peers)
        )
    elif shape.dtype == "fp8":
        yield Contestant(
            "FlashMLA sparse decode", "peer", "fp8", _HEADS, lambda: _decode(problem, peers)
        )
    else:
        reason = f"FlashMLA has no sparse decode over {shape.dtype} rows"
        yield Contestant("FlashMLA", "peer", shape.dtype, _HEADS, lambda: _absent(reason))


def _absent(reason: str) -> Ready:
    raise Absent(reason)


def _legacy(function: Callable[..., Any]) -> dict[str, Any]:
    """What the wheel that holds two generations of kernels wants for Hopper's."""
    return {"use_legacy": True} if "use_legacy" in inspect.signature(function).parameters else {}


def _padded(query: Tensor) -> Tensor:
    return functional.pad(query, (0, 0, 0, max(0, _HEADS - query.shape[1])))


def _decode(problem: Problem, peers: Peers) -> Ready:
    module, version = peers.load("flash_mla")
    cache = problem.cache.view(torch.float8_e4m3fn).view(-1, PAGE, 1, PACKED)
    function = module.flash_mla_with_kvcache
    more = _legacy(function)

    def call(each: Set) -> Callable[[], Tensor]:
        shape = problem.shape
        query = _padded(each.query).view(shape.requests, shape.queries, -1, WIDTH)
        slots = each.slots.view(shape.requests, shape.queries, -1)
        plan = module.get_mla_metadata()[0]  # filled by the first call
        return lambda: function(
            query, cache, None, None, LATENT, plan, None, SCALE, False, True, indices=slots, **more
        )[0]

    return Ready([call(each) for each in problem.sets], problem.loose, version)


def _prefill(problem: Problem, peers: Peers) -> Ready:
    module, version = peers.load("flash_mla")
    rows = problem.cache.view(-1, 1, WIDTH)
    function = module.flash_mla_sparse_fwd
    more = _legacy(function)

    def call(each: Set) -> Callable[[], Tensor]:
        query, slots = _padded(each.query), each.slots[:, None]
        length = (each.slots >= 0).sum(1, dtype=torch.int32)
        return lambda: function(query, rows, slots, SCALE, LATENT, None, length, **more)[0]

    return Ready([call(each) for each in problem.sets], problem.loose, version)
